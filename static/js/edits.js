// Forms that the server checks during editing, and whose edits are saved together.
(() => {
  // A refused check changes nothing on the page, so report it.
  // After an expired session, say how to continue.
  const refused = (is, status) => {
    const signedOut = document.getElementById("signed-out");
    const isOut = is && status === 401 && signedOut !== null;
    if (signedOut) signedOut.hidden = !isOut;
    document.getElementById("check-refused").hidden = !is || isOut;
  };
  // Requests of other parts of the page say nothing about edits.
  const isCheck = (source) => Boolean(source?.closest("[data-edits]"));

  // Repeat a check that a busy or absent server did not do, without waiting for more typing.
  const AGAIN_AFTER = 5000;
  let again = null;
  const checkAgain = (source, status) => {
    clearTimeout(again);
    if (!isCheck(source) || source.matches("[data-previews]") || (status && status < 500)) return;
    again = setTimeout(() => source.dispatchEvent(new Event("change", { bubbles: true })), AGAIN_AFTER);
  };
  for (const fault of ["htmx:error", "htmx:response:error"]) {
    document.addEventListener(fault, ({ detail: { ctx } }) => {
      const status = ctx?.response?.status;
      if (!isCheck(ctx?.sourceElement) && status !== 401) return;
      refused(true, status);
      checkAgain(ctx.sourceElement, status);
    });
  }
  document.addEventListener("htmx:after:swap", ({ detail: { ctx } }) => {
    if (!isCheck(ctx.sourceElement) || ctx.response.status >= 400) return;
    refused(false);
    clearTimeout(again);
  });

  // The fields belong to the person who types. An answer is about an earlier state: it brings marks
  // and sums, and never a value.
  const FIELDS = "input:not([type=hidden]), textarea";
  document.addEventListener("htmx:before:swap", (event) => {
    for (const { fragment } of event.detail.tasks) {
      for (const answered of fragment?.querySelectorAll(FIELDS) ?? []) {
        const field = answered.id && document.getElementById(answered.id);
        if (!field || !field.closest("[data-edits]")) continue;
        if (field.matches("textarea")) answered.textContent = field.textContent;
        for (const name of ["value", "checked"]) {
          const text = field.getAttribute(name);
          if (text === null) answered.removeAttribute(name);
          else answered.setAttribute(name, text);
        }
      }
    }
  });

  // Do not lose unsaved edits by a careless click.
  let leaving = false;
  addEventListener("pageshow", () => { leaving = false; });
  document.addEventListener("submit", () => { leaving = true; });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-discard], [data-keep]")) leaving = true;
  });
  // Edits in a draft on the server are safe.
  addEventListener("beforeunload", (event) => {
    const fields = [...document.querySelectorAll("[data-edits]:not([data-draft]) :is(input, textarea)")];
    const typed = fields.some((f) => f.value !== f.defaultValue || f.checked !== f.defaultChecked);
    const atRisk = typed || document.querySelector("[data-edits]:not([data-draft]) .edited, [data-unsent]");
    if (!leaving && atRisk) event.preventDefault();
  });
})();
