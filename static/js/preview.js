// The preview of a job is next to its form. While the newest request is open, or after it failed, the
// preview is outdated: say so, and ask again.
(() => {
  const AGAIN_AFTER = 5000;
  const preview = document.getElementById("preview");
  const form = document.getElementById("job-form");
  const asked = new WeakMap(); // request -> how much had been typed
  let typed = 0;
  let again = null;
  const isOurs = (ctx) => ctx?.sourceElement === preview;

  const busy = () => preview.setAttribute("aria-busy", "true");
  const tell = (why) => {
    for (const notice of document.querySelectorAll("[data-not-checked]")) {
      notice.hidden = notice.dataset.notChecked !== why;
    }
  };

  for (const kind of ["input", "change"]) {
    form.addEventListener(kind, () => { typed += 1; busy(); });
  }
  document.addEventListener("htmx:before:request", ({ detail: { ctx } }) => {
    if (!isOurs(ctx)) return;
    clearTimeout(again);
    asked.set(ctx, typed);
    busy();
  });
  document.addEventListener("htmx:after:swap", ({ detail: { ctx } }) => {
    if (!isOurs(ctx) || ctx.response.status >= 400) return;
    tell("");
    if (asked.get(ctx) === typed) preview.removeAttribute("aria-busy");
  });
  for (const fault of ["htmx:error", "htmx:response:error"]) {
    document.addEventListener(fault, ({ detail: { ctx } }) => {
      if (!isOurs(ctx)) return;
      tell([401, 403].includes(ctx.response?.status) ? "signed-out" : "failed");
      clearTimeout(again);
      again = setTimeout(() => form.dispatchEvent(new Event("change", { bubbles: true })), AGAIN_AFTER);
    });
  }
})();
