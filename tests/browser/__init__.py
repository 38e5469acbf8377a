"""Tests in a real browser: they share one, with one JupyterLab and one tab."""
