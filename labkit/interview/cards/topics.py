"""What the cards must cover: the topics of each labkit/course/SUBJECT/subject.toml."""

from dataclasses import dataclass

from labkit.grade.catalog import load_subjects


@dataclass(frozen=True, slots=True)
class Topic:
    """One thing that interviews ask about."""

    id: str
    title: str
    group: str
    """The title of its subject."""
    subject: str
    """The name of the folder in which its cards, drills and exercises are."""
    notebook: str = ""
    """"" where there is none yet."""
    section: str = ""
    """The heading in the notebook under which it is shown."""
    contradicts: bool = False
    """Whether tools and papers count differently here: its card says which counts which."""


def load_topics() -> dict[str, Topic]:
    """Every topic by its id, in the course's order."""
    topics = [
        Topic(group=subject.title, subject=subject.name, **entry)
        for subject in load_subjects().values()
        for entry in subject.topics
    ]
    return {topic.id: topic for topic in topics}
