// Code and tables that scroll can be reached by Tab: the arrow keys scroll them then.
addEventListener("DOMContentLoaded", () => {
  const sizes = new ResizeObserver((changes) => {
    for (const { target } of changes) {
      if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });
  for (const each of document.querySelectorAll("pre, .table-wrapper")) sizes.observe(each);
});
