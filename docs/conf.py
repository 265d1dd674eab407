"""Sphinx configuration. The build needs no network."""

import inspect
from importlib.metadata import version as version_of

from sphinx.ext.napoleon import GoogleDocstring

project = "pynamodb-mutex"
author = "pynamodb-mutex maintainers"
copyright = author  # noqa: A001 - Sphinx's name
release = version_of("pynamodb-mutex")
version = release

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
# single backquotes, as the docstrings use them, name Python objects
default_role = "py:obj"
nitpicky = True

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# Names of others: their documentation is on the network.
nitpick_ignore_regex = [
    (
        r"py:.*",
        r"(pynamodb|asyncio|collections|contextlib|threading|datetime|typing|typing_extensions|enum)\..*",
    ),
    (
        r"py:class",
        r"([MNPRT]|Skipping|Waiting|P\.args|P\.kwargs|Self|(Async)?Options|pynamodb_mutex\.(testing\.holders|aio|_row_locks)\.M)",
    ),
    # of blinker, prometheus_client and OpenTelemetry
    (r"py:class", r"(NamedSignal|CollectorRegistry|TracerProvider|MeterProvider)"),
    (r"py:class", r"(Action|BatchWrite|Condition|Model|(.*\.Guarded)?TransactWrite)"),
]

exclude_patterns = ["speed/*.rst"]  # parts of speed.rst, as make bench writes them

html_theme = "furo"
html_title = "pynamodb-mutex"


def property_docstring(app, what, name, obj, options, lines):  # noqa: PLR0917 - Sphinx calls it so
    """Read a property's docstring as a method's.

    Napoleon takes the words before its first colon for a type, and knows no sections in it.
    """
    if what == "property":
        written = inspect.getdoc(obj).splitlines()
        lines[:] = GoogleDocstring(written, app.config, app, "method", name, obj, options).lines()


def setup(app):
    app.connect("autodoc-process-docstring", property_docstring, priority=900)  # after napoleon
