"""The lab as a website: `make book` writes build/book/html.

stage.py        copies what the site is made of to build/book/stage, as Sphinx reads it
links.py        where a file of the repository is on the site
notebook.py     a notebook without its kernel: outputs, pictures, parts that run in the page
practice.py     pages of question cards, claims and exercises
trying.py       pages of the parts that run in the page
conf.py         Sphinx's settings
static/         stylesheet
check.py        dead links, pictures without words, other hosts, weight
"""
