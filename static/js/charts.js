// Draw the figures of [data-chart] elements: fetch JSON, colour from the theme, redraw in place.
(() => {
  const CONFIG = { displayModeBar: false, displaylogo: false, showSendToCloud: false, responsive: true };
  const LASTS = 60000; // the time limit of every request of a page
  const kept = new WeakMap(); // element -> { etag, figure }
  const underWay = new WeakSet();

  const colour = (styles, name) => {
    const value = styles.getPropertyValue(name).trim();
    if (!value) throw new Error(`no colour named ${name}`);
    return value;
  };

  // Replace each name of a custom property by its colour.
  const coloured = (value, styles) => {
    if (typeof value === "string") {
      const [, name] = /^var\((--[\w-]+)\)$/.exec(value) ?? [];
      return name ? colour(styles, name) : value;
    }
    if (Array.isArray(value)) return value.map((item) => coloured(item, styles));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v, styles)]));
    }
    return value;
  };

  const draw = (element) => {
    const { figure } = kept.get(element);
    const styles = getComputedStyle(document.documentElement);
    const { meta, ...given } = figure.layout;
    // Without data there is no chart: the sentence says so.
    element.closest("figure").classList.toggle("blank", meta.table.rows.length === 0);
    // The figure's template defines its look; only the font is the page's.
    const font = { family: getComputedStyle(document.body).fontFamily };
    Plotly.react(element, coloured(figure.data, styles), { ...coloured(given, styles), font }, CONFIG);
    describe(element.closest("figure"), meta);
    lead(element, meta.table);
  };

  // Marks link to the same pages as their rows; keyboards use the links of the table.
  const lead = (element, { rows, links }) => {
    element.classList.toggle("leads", Boolean(links));
    element.removeAllListeners("plotly_click");
    if (!links) return;
    element.on("plotly_click", ({ points: [point] }) => {
      const at = rows.findIndex(([name]) => String(name) === String(point.x));
      if (at >= 0) location.assign(links[at]);
    });
  };

  // The finding as a sentence, and the same data as a table.
  const describe = (figure, meta) => {
    figure.querySelector("[data-summary]").textContent = meta.summary;
    const cell = (tag, text) => {
      const element = document.createElement(tag);
      if (tag === "th") element.scope = "col";
      element.textContent = typeof text === "number" ? text.toLocaleString("en", { maximumFractionDigits: 2 }) : text ?? "–";
      if (typeof text === "number") element.className = "num";
      return element;
    };
    const row = (tag, texts, link) => {
      const element = document.createElement("tr");
      element.append(...texts.map((text) => cell(tag, text)));
      if (link) {
        const anchor = document.createElement("a");
        anchor.href = link;
        anchor.append(...element.firstChild.childNodes);
        element.firstChild.append(anchor);
      }
      return element;
    };
    const [head, body] = [document.createElement("thead"), document.createElement("tbody")];
    head.append(row("th", meta.table.columns));
    body.append(...meta.table.rows.map((texts, at) => row("td", texts, meta.table.links?.[at])));
    figure.querySelector("[data-table]").replaceChildren(head, body);
  };

  const say = (element, text) => {
    if (kept.has(element)) return; // keep a drawn chart; the page says that the connection is lost
    const message = document.createElement("div");
    message.className = "plot-message";
    message.textContent = text;
    element.replaceChildren(message);
  };

  const tell = (name, part, ok) => document.dispatchEvent(new CustomEvent(name, { detail: { part, ok } }));

  // Return whether the figure has changed.
  const fetched = async (element) => {
    const old = kept.get(element);
    const response = await fetch(element.dataset.chart, {
      headers: { Accept: "application/json" }, signal: AbortSignal.timeout(LASTS),
    });
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
    const etag = response.headers.get("ETag");
    if (old && etag && old.etag === etag) return false;
    const figure = await response.json();
    if (!old) element.replaceChildren();
    kept.set(element, { etag, figure });
    return true;
  };

  // One question at a time: an older answer cannot come after a newer one.
  const load = async (element) => {
    if (underWay.has(element)) return;
    underWay.add(element);
    tell("kant:asks", element);
    let isAnother = false;
    try {
      isAnother = await fetched(element);
      tell("kant:news", element, true);
    } catch (error) {
      say(element, `This chart could not be loaded: ${error.message}.`);
      tell("kant:news", element, false);
    } finally {
      underWay.delete(element);
    }
    if (isAnother) draw(element);
  };

  const start = () => {
    for (const element of document.querySelectorAll("[data-chart]")) {
      element.addEventListener("refresh", () => load(element));
      load(element);
    }
  };

  document.addEventListener("kant:theme", () => {
    for (const element of document.querySelectorAll("[data-chart]")) {
      if (kept.has(element)) draw(element);
    }
  });
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
