// Shared by all pages: live updates, menus, dialogs, copying, forms that are sent only once.

// --- live updates ---
// An element with data-poll="5" gets a "refresh" event every 5 s; htmx and charts listen for it.
// Nothing is fetched while the tab is hidden or the reader has paused. While the change feed says
// that nothing has changed, elements with data-feed are fetched only when their texts grow old.
(() => {
  const WORDS_LAST = 10000;
  const TRY_FEED_EVERY = 60000;
  const due = new WeakMap();
  const asked = new WeakMap();
  const opened = Date.now();
  const began = new WeakMap(); // request -> when it was sent
  const open = new WeakMap(); // part without its answer yet -> when it was requested
  const known = new WeakMap(); // part -> when its current content was requested
  const failing = new WeakSet();
  let feed = null;
  let feedTried = 0;
  let changed = 0;
  let paused = false;
  let lastNews = Date.now();

  const parts = () => [...document.querySelectorAll("[data-poll]")];
  const knownOf = (part) => known.get(part) ?? opened;
  const isLate = (part) => Date.now() - (open.get(part) ?? Infinity) >= WORDS_LAST;

  // A page is as old as its oldest part whose last request failed or is still open.
  const show = () => {
    const lost = parts().filter((part) => failing.has(part));
    const late = parts().filter(isLate);
    const isOld = lost.length + late.length > 0;
    const since = isOld ? Math.min(...[...lost, ...late].map(knownOf)) : lastNews;
    const age = Math.round((Date.now() - since) / 1000);
    for (const label of document.querySelectorAll("[data-freshness]")) {
      label.dataset.state = isOld ? "lost" : paused ? "paused" : "live";
      label.textContent = isOld
        ? `${lost.length ? "connection lost" : "no answer yet"}, shown as of ${age} s ago`
        : `${paused ? "paused" : "live"} · ${age < 2 ? "just now" : `${age} s ago`}`;
    }
  };

  const refresh = (element) => {
    due.set(element, Date.now() + 1000 * Number(element.dataset.poll));
    asked.set(element, Date.now());
    element.dispatchEvent(new CustomEvent("refresh"));
  };

  const isDue = (element) => {
    if (Date.now() < due.get(element)) return false;
    const last = asked.get(element) ?? opened;
    const fed = "feed" in element.dataset && feed?.readyState === EventSource.OPEN;
    return !fed || last < changed || Date.now() - last >= WORDS_LAST;
  };

  const refreshAll = (onlyDue) => {
    if (document.hidden || paused) return;
    for (const element of document.querySelectorAll("[data-poll]")) {
      if (!due.has(element)) due.set(element, Date.now() + 1000 * Number(element.dataset.poll));
      if (!onlyDue || isDue(element)) refresh(element);
    }
  };

  // One stream for each visible tab: a browser allows few connections to a host. The browser reopens
  // a broken stream by itself, but not a refused one.
  const listen = () => {
    const fed = document.querySelector("[data-feed]");
    if (!fed || document.hidden || paused) {
      feed?.close();
      feed = null;
      return;
    }
    if (feed && feed.readyState !== EventSource.CLOSED) return;
    if (feed && Date.now() < feedTried + TRY_FEED_EVERY) return;
    feedTried = Date.now();
    feed = new EventSource(fed.dataset.feed);
    feed.addEventListener("changed", () => {
      changed = Date.now();
      refreshAll(true);
    });
    // That counts for a page only if it shows the state after the last change.
    feed.addEventListener("same", () => {
      const isCurrent = (part) => !failing.has(part) && !open.has(part) && knownOf(part) >= changed;
      if (parts().every((part) => !("feed" in part.dataset) || isCurrent(part))) lastNews = Date.now();
      show();
    });
  };
  addEventListener("pagehide", () => feed?.close());

  setInterval(() => {
    listen();
    refreshAll(true);
    show();
  }, 1000);
  document.addEventListener("visibilitychange", () => {
    listen();
    refreshAll(false);
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-pause]");
    if (!button) return;
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    button.querySelector("[data-pause-text]").textContent = paused ? "Continue" : "Pause";
    listen();
    refreshAll(false);
    show();
  });

  const asks = (part) => open.set(part, Date.now());
  const news = (part, ok, since) => {
    open.delete(part);
    if (ok) {
      failing.delete(part);
      known.set(part, since);
      lastNews = Date.now();
    } else failing.add(part);
    show();
  };
  document.addEventListener("kant:asks", ({ detail: { part } }) => asks(part));
  document.addEventListener("kant:news", ({ detail: { part, ok } }) => news(part, ok, open.get(part)));

  const partOf = (ctx) => (ctx?.sourceElement?.matches("[data-poll]") ? ctx.sourceElement : null);
  document.addEventListener("htmx:before:request", ({ detail: { ctx } }) => {
    began.set(ctx, Date.now());
    if (partOf(ctx)) asks(partOf(ctx));
  });
  // The event also follows a refused answer, from which nothing was swapped in.
  document.addEventListener("htmx:after:swap", ({ detail: { ctx } }) => {
    if (partOf(ctx) && ctx.response.status < 400) news(partOf(ctx), true, began.get(ctx));
  });
  for (const fault of ["htmx:error", "htmx:response:error"]) {
    document.addEventListener(fault, ({ detail: { ctx } }) => {
      if (partOf(ctx)) news(partOf(ctx), false);
    });
  }
  // A part inside a part is also requested alone: keep the content that was requested later.
  document.addEventListener("htmx:before:swap", ({ detail: { ctx, tasks } }) => {
    for (const { fragment } of tasks) {
      for (const answered of fragment?.querySelectorAll("[data-poll]") ?? []) {
        const here = document.getElementById(answered.id);
        if (!here || !(known.get(here) > began.get(ctx))) continue;
        answered.replaceChildren(...here.cloneNode(true).childNodes);
      }
    }
  });
  document.addEventListener("DOMContentLoaded", show);
})();

// --- menus, dialogs, copying ---
(() => {
  document.addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      if (!menu.contains(event.target)) menu.open = false;
    }
    const toggle = event.target.closest("[data-nav-toggle]");
    if (toggle) {
      const open = document.getElementById("nav").classList.toggle("open");
      toggle.setAttribute("aria-expanded", String(open));
    }
    const opener = event.target.closest("[data-dialog]");
    if (opener) show(document.getElementById(opener.dataset.dialog), opener);
    const closer = event.target.closest("[data-close]");
    if (closer) closer.closest("dialog").close();
    const copier = event.target.closest("[data-copy]");
    if (copier) copy(copier);
    const filler = event.target.closest("[data-fill]");
    if (filler) fill(filler);
  });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
    const nav = document.getElementById("nav");
    if (nav?.classList.contains("open")) {
      nav.classList.remove("open");
      const toggle = document.querySelector("[data-nav-toggle]");
      toggle.setAttribute("aria-expanded", "false");
      toggle.focus();
    }
  });

  // Close a menu when the keyboard focus leaves it.
  document.addEventListener("focusout", (event) => {
    const menu = event.target.closest("details.menu[open]");
    if (menu && event.relatedTarget && !menu.contains(event.relatedTarget)) menu.open = false;
  });

  // A dialog states its effect from the current live part of the page.
  const tellEffect = (dialog) => {
    for (const place of dialog.querySelectorAll("[data-text-of]")) {
      place.textContent = document.getElementById(place.dataset.textOf).textContent;
    }
  };

  // One dialog serves all rows of a list: the button that opens it names the row.
  const pointAt = (dialog, opener) => {
    if (opener.dataset.action) dialog.querySelector("form").action = opener.dataset.action;
    if (opener.dataset.preview) dialog.querySelector("[data-previews]").setAttribute("hx-post", opener.dataset.preview);
    for (const place of dialog.querySelectorAll("[data-about-opener]")) {
      place.textContent = opener.dataset.about;
    }
  };

  // Fill the fields from the live part of the page, not from what was typed the last time.
  const fillFields = (dialog) => {
    for (const form of dialog.querySelectorAll("form[data-fields-of]")) {
      const now = document.getElementById(form.dataset.fieldsOf);
      for (const field of form.elements) {
        const value = now.getAttribute(`data-${field.name.replace(/^initial-/, "")}`);
        // Hide fields that can no longer be changed.
        const row = field.closest(".fields > *");
        if (row) row.hidden = field.disabled = value === null;
        if (value === null) continue;
        field.value = value;
        field.removeAttribute("aria-invalid");
        const hint = document.getElementById(`${field.id}_helptext`);
        if (hint) field.setAttribute("aria-describedby", hint.id);
        else field.removeAttribute("aria-describedby");
      }
      form.querySelectorAll(".error, .notice.bad").forEach((error) => error.remove());
      form.querySelectorAll(".hint").forEach((hint) => { hint.hidden = false; });
    }
  };

  const show = (dialog, opener) => {
    pointAt(dialog, opener);
    tellEffect(dialog);
    fillFields(dialog);
    // Fill in a remedy, for the reader to check and send.
    const field = opener.dataset.fillIn && dialog.querySelector("form").elements[opener.dataset.fillIn];
    if (field) field.value = opener.dataset.value;
    dialog.showModal();
    if (field) field.focus();
  };

  document.addEventListener("htmx:after:swap", () => {
    document.querySelectorAll("dialog[open]").forEach(tellEffect);
  });

  // Show a dialog's form that came back with errors, as it was typed.
  for (const dialog of document.querySelectorAll("dialog[data-open]")) {
    tellEffect(dialog);
    dialog.showModal();
  }

  const copy = async (button) => {
    const text = document.getElementById(button.dataset.copy).textContent;
    const label = button.querySelector("[data-copy-text]");
    try {
      await navigator.clipboard.writeText(text.trim());
      label.textContent = "Copied";
    } catch {
      label.textContent = "Press Ctrl+C";
      getSelection().selectAllChildren(document.getElementById(button.dataset.copy));
    }
    setTimeout(() => { label.textContent = "Copy"; }, 2000);
  };

  // Fill in name and password of a demo account on the sign-in page.
  const fill = (button) => {
    const form = document.getElementById(button.dataset.fill);
    form.elements.username.value = button.dataset.username;
    form.elements.password.value = button.dataset.password;
    form.requestSubmit();
  };

  // Send a form that creates something only once, however often its button is pressed.
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("form[data-once]")) return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "yes";
  });

  // The reader may return to a page as it was left.
  addEventListener("pageshow", () => {
    for (const form of document.forms) delete form.dataset.sent;
  });
})();
