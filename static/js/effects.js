// What a change would do is shown where it is seen at once, and only as long as it is of what the
// fields say: an answer to what they said before is thrown away.
(() => {
  // On a page with several dialogs each has a place of its own.
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
    // Why something is changed has no effect on jobs.
    if (event.target.name !== "reason" && event.target.form?.querySelector("[data-previews]")) forget();
  });
  // A dialog shows other values when it is opened again.
  document.addEventListener("close", ({ target }) => {
    const told = target.querySelector?.("#effects, [data-effects]");
    if (!told) return;
    changes += 1;
    told.replaceChildren();
  }, true);
})();
