// Paste blocks of spreadsheet cells into the quota matrix, starting at the cell with the cursor. If
// the first row has GPU types and the first column has tenants, use these names instead, as for a
// CSV file. Texts that are no quotas are entered as well; the check marks them.
(() => {
  const matrix = document.querySelector("#matrix");
  if (!matrix) return;
  const MOST_BYTES = 1 << 20;
  const MOST_TOLD = 12;
  const fieldOf = (cell) => cell?.querySelector("input:not([type=hidden])") ?? null;
  // The content of a cell that only others may change: the number, and the whole quota.
  const saidIn = (cell) => {
    const shown = cell?.querySelector("[data-said]");
    return shown ? [shown.textContent.trim().replaceAll(",", ""), shown.dataset.said] : [];
  };

  // Split a text into rows; a quoted part is one cell, whatever it contains.
  const rowsOf = (text, separator) => {
    const rows = [[""]];
    let quoted = false;
    const add = (sign) => { const row = rows.at(-1); row[row.length - 1] += sign; };
    for (let at = 0; at < text.length; at += 1) {
      const sign = text[at];
      if (sign === '"' && quoted && text[at + 1] === '"') { add(sign); at += 1; }
      else if (sign === '"' && (quoted || rows.at(-1).at(-1) === "")) quoted = !quoted;
      else if (quoted) add(sign);
      else if (sign === separator) rows.at(-1).push("");
      else if (sign === "\n") rows.push([""]);
      else if (sign !== "\r") add(sign);
    }
    if (rows.at(-1).join("") === "") rows.pop();
    return rows.map((row) => row.map((cell) => cell.trim()));
  };

  const separatorOf = (text) => {
    const first = text.split("\n", 1)[0];
    return ["\t", ";", ","].find((sign) => first.includes(sign)) ?? ",";
  };

  const columns = () => [...matrix.querySelectorAll("thead th")].map((head) => head.textContent.trim());
  const namesTypes = (rows) => rows[0]?.slice(1).some((name) => name && columns().includes(name));

  // [cell of the table or undefined, text, its name if there is no such cell]
  const byName = (rows) => {
    const [types, heads] = [rows[0], columns()];
    const lines = [...matrix.querySelectorAll("tbody tr")];
    const named = new Map(lines.map((line) => [line.cells[0].querySelector("a").textContent, line]));
    return rows.slice(1).flatMap((row) => row.slice(1).map((text, at) => {
      const column = heads.indexOf(types[at + 1] ?? "", 1);
      const cell = column > 0 ? named.get(row[0])?.cells[column] : undefined;
      return [cell, text, `${row[0]} ${types[at + 1] ?? ""}: ${text}`];
    }));
  };

  const byPlace = (rows, from) => {
    const lines = [...matrix.querySelectorAll("tbody tr")];
    const [top, left] = [lines.indexOf(from.closest("tr")), from.closest("td").cellIndex];
    return rows.flatMap((row, down) => row.map((text, right) =>
      [lines[top + down]?.cells[left + right], text, text]));
  };

  const tell = (text) => {
    const notice = document.getElementById("pasted");
    notice.hidden = false;
    notice.querySelector("div").textContent = text;
  };

  const fill = (found) => {
    let count = 0;
    let last = null;
    const without = [];
    for (const [cell, text, name] of found) {
      if (text === "") continue;  // leaves the cell as it is
      const field = fieldOf(cell);
      if (field) {
        field.value = text;
        field.dispatchEvent(new Event("input", { bubbles: true }));
        last = field;
        count += 1;
      } else if (!saidIn(cell).includes(text)) without.push(name);
    }
    const more = without.length - MOST_TOLD;
    const listed = without.slice(0, MOST_TOLD).join(", ") + (more > 0 ? ` and ${more} more` : "");
    const told = `${count} ${count === 1 ? "cell is" : "cells are"} filled; nothing is saved yet.`;
    tell(without.length ? `${told} Not filled, because this page has no such cell that you may change: ${listed}.` : told);
    if (without.length) document.getElementById("pasted").scrollIntoView({ block: "nearest" });
    last?.dispatchEvent(new Event("change", { bubbles: true }));
  };

  document.addEventListener("paste", (event) => {
    const from = event.target;
    if (!from.matches?.("#matrix td input:not([type=hidden])")) return;
    const rows = rowsOf(event.clipboardData.getData("text/plain"), "\t");
    if (rows.flat().length < 2) return;  // a single cell is pasted like any text
    event.preventDefault();
    fill(namesTypes(rows) ? byName(rows) : byPlace(rows, from));
  });

  document.querySelector("[data-import]")?.addEventListener("change", async (event) => {
    const [file] = event.target.files;
    event.target.value = "";  // so that the same file can be chosen again
    if (!file) return;
    if (file.size > MOST_BYTES) { tell(`${file.name} has more than 1 MiB; this is no table of quotas.`); return; }
    const text = (await file.text()).replace(/^\ufeff/, "");
    const rows = rowsOf(text, separatorOf(text));
    if (namesTypes(rows)) fill(byName(rows));
    else tell(`${file.name} names no GPU type of this table in its first row. Take the CSV of this page, and change cells in it.`);
  });
})();
