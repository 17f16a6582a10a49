// Show the preview of a change where people see it at once, and only while it matches the fields:
// discard answers to earlier values.
(() => {
  // On a page with several dialogs, each has a preview of its own.
  const shown = () => document.querySelector("dialog[open] [data-effects]") ?? document.getElementById("effects");
  const asked = new WeakMap(); // request -> how often the fields had changed
  let changes = 0;

  const forget = () => {
    changes += 1;
    shown()?.replaceChildren();
  };

  document.addEventListener("htmx:before:request", ({ detail: { ctx } }) => asked.set(ctx, changes));
  document.addEventListener("htmx:before:swap", (event) => {
    const { ctx, tasks } = event.detail;
    const isOurs = tasks.some((task) => task.target === shown());
    if (isOurs && asked.get(ctx) !== changes) event.preventDefault();
  });
  document.addEventListener("htmx:after:swap", () => {
    const card = shown()?.querySelector("[data-new]");
    if (!card) return;
    card.removeAttribute("data-new");
    card.focus();
  });
  document.addEventListener("input", (event) => {
    // The reason of a change has no effect on jobs.
    if (event.target.name !== "reason" && event.target.form?.querySelector("[data-previews]")) forget();
  });
  // A dialog may show other values when it is opened again.
  document.addEventListener("close", ({ target }) => {
    const told = target.querySelector?.("#effects, [data-effects]");
    if (!told) return;
    changes += 1;
    told.replaceChildren();
  }, true);
})();
