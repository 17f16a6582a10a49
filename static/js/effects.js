// What a change would do is shown where it is seen at once, and only as long as it is of what the
// fields say.
(() => {
  const shown = () => document.getElementById("effects");

  document.addEventListener("htmx:after:swap", () => {
    const card = shown()?.querySelector("[data-new]");
    if (!card) return;
    card.removeAttribute("data-new");
    card.focus();
  });
  document.addEventListener("input", (event) => {
    if (event.target.form?.querySelector("[data-previews]")) shown()?.replaceChildren();
  });
})();
