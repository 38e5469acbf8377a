"""The part of IPython that ipywidgets asks for."""
