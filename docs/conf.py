"""Sphinx configuration. The build needs no network."""

import inspect
import os
import re
from importlib import import_module
from importlib.metadata import version as version_of
from pathlib import Path
from typing import ClassVar

from docutils.nodes import paragraph
from docutils.statemachine import StringList
from sphinx.domains.python import PyObject
from sphinx.ext.napoleon import GoogleDocstring
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

project = "pynamodb-mutex"
author = "pynamodb-mutex maintainers"
copyright = author  # noqa: A001 - Sphinx's name
release = version_of("pynamodb-mutex")
version = release

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_last_updated_by_git",
    "sphinx_sitemap",
    "sphinxext.opengraph",
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
napoleon_custom_sections = [  # the groups of options, as `LockOptions` has them
    (group, "params_style") for group in ("Waiting", "Lease and loss", "The row", "Special kinds")
]

# Names of others: their documentation is on the network.
nitpick_ignore_regex = [
    (
        r"py:.*",
        r"(pynamodb|asyncio|collections|contextlib|threading|datetime|typing|typing_extensions|enum)\..*",
    ),
    (
        r"py:class",
        r"([MNPRT]|Skipping|Waiting|P\.args|P\.kwargs|Self|(Async|Once)?Options|pynamodb_mutex\.(testing\.holders|aio|_row_locks)\.M)",
    ),
    (r"py:class", r"datetime|timedelta"),
    (r"py:class", r"pynamodb_mutex\._async_runs\.AsyncRun"),  # a Run whose methods are awaited
    # of blinker, prometheus_client and OpenTelemetry
    (r"py:class", r"(NamedSignal|CollectorRegistry|TracerProvider|MeterProvider)"),
    (r"py:class", r"(Action|BatchWrite|Condition|Model|(.*\.Guarded)?TransactWrite)"),
]

exclude_patterns = ["speed/*.rst"]  # parts of speed.rst, as make bench writes them

html_theme = "furo"
html_title = f"pynamodb-mutex {release}"
html_baseurl = os.environ.get(
    "READTHEDOCS_CANONICAL_URL", "https://pynamodb-mutex.readthedocs.io/page/"
)
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_theme_options = {
    "source_repository": "https://github.com/pynamodb-mutex/pynamodb-mutex",
    "source_branch": "main",
    "source_directory": "docs",
}
pygments_dark_style = "a11y-dark"  # the theme's own underlines the names of modules
suppress_warnings = ["git"]  # a page whose last change is not in a shallow clone has no date

sitemap_url_scheme = "{link}"
sitemap_show_lastmod = True
ogp_site_url = html_baseurl
ogp_social_cards = {"enable": "READTHEDOCS" in os.environ}  # they take longer than all else


MEMBERS = {
    "Make one": ["for_key", "for_row", "for_keys", "any_of"],
    "Acquire and release": [
        *("acquire", "release", "__enter__", "__exit__", "__aenter__", "__aexit__", "__call__"),
    ],
    "State, without a request": ["held", "remaining", "deadline", "lost", "loss", "position"],
    "Renew": ["ensure_held", "renew"],
    "The lock, and this acquisition of it": [
        *("key", "keys", "members", "permit", "row", "owner", "token", "fencing_token"),
        *("range_key", "fencing_tokens", "abandoned", "abandoned_by", "data"),
    ],
    "Write under the lock": ["transaction", "save_data"],
    "Hand over to another process": ["detach", "attach"],
    "The lock in DynamoDB": ["locked", "force_release"],
}
"""The members of all handles on locks, in the order in which the reference shows them."""

INTERNAL = {"bind", "of"}
"""Methods that the modules of the library call on each other's objects."""


class Members(SphinxDirective):
    """``.. members:: CLASS``: its members by `MEMBERS`; those that other classes have described, as links.

    The option ``described`` names these classes, each before those that refer to it. A public member without a place in
    `MEMBERS` is an error.
    """

    required_arguments = 1
    option_spec: ClassVar = {"described": str.split}

    def run(self):
        name, handle = self.arguments[0], find(self.arguments[0])
        links = {base: [] for base in self.options.get("described", ())}
        public = {each for each in dir(handle) if not each.startswith("_")} - INTERNAL
        if unknown := public - {each for names in MEMBERS.values() for each in names}:
            raise self.error(f"{name}: no place for {', '.join(sorted(unknown))}")
        lines = []
        for title, names in MEMBERS.items():
            own = []
            for each in (each for each in names if self.has(handle, each)):
                same = (base for base in links if found(find(base), each) is found(handle, each))
                links.get(next(same, None), own).append(each)
            lines += [f".. rubric:: {title}", ""] if own else []
            for each in own:
                is_property = isinstance(found(handle, each), property)
                lines += [f".. auto{'property' if is_property else 'method'}:: {name}.{each}", ""]
        for base, inherited in links.items():
            as_links = ", ".join(f":py:obj:`{each} <{base}.{each}>`" for each in inherited)
            if inherited:
                lines += [f"As ``{base.rpartition('.')[2]}`` has them: {as_links}.", ""]
        return self.parse_text_to_nodes(StringList(lines, source=name))

    @staticmethod
    def has(handle, name):
        """Say whether a class has a member, other than one that only refuses, or that makes objects of its base alone."""
        member = found(handle, name)
        if member is None or not member.__doc__:
            return False
        makers = {each for kind in handle.__mro__ for each in vars(kind).get("_makers", ())}
        return name not in makers or name in handle._makers


def found(kind, name):
    """Return what a class has under a name, by itself or by inheritance, as it is defined."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def find(name):
    """Return what a dotted name names."""
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def property_docstring(app, what, name, obj, options, lines):  # noqa: PLR0917 - Sphinx calls it so
    """Read a property's docstring as a method's.

    Napoleon takes the words before its first colon for a type, and knows no sections in it.
    """
    if what == "property":
        written = inspect.getdoc(obj).splitlines()
        lines[:] = GoogleDocstring(written, app.config, app, "method", name, obj, options).lines()


def variable_docstring(app, what, name, obj, options, lines):  # noqa: PLR0917 - Sphinx calls it so
    """Describe a variable that another library defines: autodoc finds the docstring of its type."""
    if name == "pynamodb_mutex.signals.signals_available":
        lines[:] = ["Whether blinker is installed, so that signals are sent."]


def readable_defaults(app, what, name, obj, options, signature, result):  # noqa: PLR0917 - as above
    """Show the objects among the defaults by their names."""
    if signature is None:
        return None
    registry = "<prometheus_client.registry.CollectorRegistry object>"
    signature = signature.replace(registry, "prometheus_client.REGISTRY")
    return re.sub(r"<(?:class '|function )(?:\w+\.)*(\w+)'?>", r"\1", signature), result


def llms_txt(app, error):
    """Write llms.txt: of each page, in the order of the navigation, its title, its address and its first paragraph."""
    if error is None and app.builder.format == "html":
        lines = [f"# {project}", ""]
        for page in app.env.collect_relations():
            title = app.env.titles[page].astext()
            first = next(app.env.get_doctree(page).findall(paragraph)).astext()
            lines.append(f"- [{title}]({html_baseurl}{page}.html): {' '.join(first.split())}")
        Path(app.outdir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def setup(app):
    for module in ("pynamodb_mutex._synchronized", "pynamodb_mutex.testing.holders"):
        # autodoc would show the overloads, which are for type checkers, in place of the signature
        analyzer = ModuleAnalyzer.for_module(module)
        analyzer.analyze()
        analyzer.overloads.clear()
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
    app.add_directive("members", Members)
    app.connect("build-finished", llms_txt)
    app.connect("autodoc-process-docstring", variable_docstring)
    app.connect("autodoc-process-signature", readable_defaults)
    app.connect("autodoc-process-docstring", property_docstring, priority=900)  # after napoleon
