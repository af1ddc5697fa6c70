(() => {
"use strict";
// Filters and sorts the table after a form; what is chosen stands in the address, so that a link shows the same.
const clean = text => text.trim().toLowerCase();
const key = cell => cell.dataset.key ?? clean(cell.textContent);
const order = (one, other) => {
  const a = key(one), b = key(other), x = Number(a), y = Number(b);
  if (a === "" || b === "") return (a === "") - (b === "");
  return Number.isNaN(x) || Number.isNaN(y) ? (a < b ? -1 : a > b ? 1 : 0) : x - y;
};
const asked = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
const remember = (name, value) => {
  const all = asked();
  value ? all.set(name, value) : all.delete(name);
  const hash = all.toString();
  history.replaceState(null, "", hash ? "#" + hash : location.pathname + location.search);
};
const sorter = table => {
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells], body = table.tBodies[0], first = [...body.rows];
  const sort = by => {
    const column = parseInt(by, 10), down = by.endsWith("d");
    heads.forEach((head, place) => {
      if (by && place === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const rows = [...first];
    if (by && heads[column]) rows.sort((a, b) => order(a.cells[column], b.cells[column]) * (down ? -1 : 1));
    body.append(...rows);
  };
  heads.forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const by = place + (head.getAttribute("aria-sort") === "ascending" ? "d" : "a");
      sort(by);
      table.dispatchEvent(new CustomEvent("sorted", {detail: by}));
    });
  });
  if (table.classList.contains("stack")) for (const row of first)
    [...row.cells].forEach((cell, place) => { cell.dataset.head = heads[place].textContent; });
  return sort;
};
for (const table of document.querySelectorAll("table[data-sortable]")) {
  const sort = sorter(table), frame = table.closest(".wide"), status = frame.previousElementSibling;
  const form = status && status.matches(".found") ? status.previousElementSibling : null;
  if (!form) continue;
  const rows = [...table.tBodies[0].rows].map(row => [row, clean(row.textContent)]);
  const selects = [...form.querySelectorAll("select[data-column]")], by = form.elements.by;
  const narrow = () => {
    const words = clean(form.elements.q.value).split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [row, text] of rows) {
      const fits = words.every(word => text.includes(word)) &&
        selects.every(one => !one.value || row.cells[+one.dataset.column].textContent.trim() === one.value);
      row.hidden = !fits;
      shown += fits;
    }
    status.textContent = shown === rows.length ? `${shown} ${form.dataset.what}` : `${shown} of ${rows.length} ${form.dataset.what}`;
  };
  const read = () => {
    const all = asked();
    for (const one of form.elements) if (one.name) one.value = all.get(one.name) ?? "";
    sort(all.get("by") ?? "");
    narrow();
  };
  form.addEventListener("input", event => {
    remember(event.target.name, event.target.value);
    event.target === by ? sort(by.value) : narrow();
  });
  form.addEventListener("submit", event => event.preventDefault());
  form.addEventListener("reset", event => {
    event.preventDefault();
    for (const one of form.elements) if (one.name) remember(one.name, "");
    read();
    form.elements.q.focus();
  });
  table.addEventListener("sorted", event => {
    if (by) by.value = event.detail;
    remember("by", event.detail);
  });
  addEventListener("hashchange", read);
  addEventListener("keydown", event => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) return;
    event.preventDefault();
    form.elements.q.focus();
  });
  form.hidden = false;
  read();
}
// Where a page is served while it changes, whoever serves it says so, and it is loaded again when it is another.
if ("live" in document.documentElement.dataset) {
  const changes = new EventSource("/-/changes?page=" + encodeURIComponent(location.pathname) +
    "&version=" + encodeURIComponent(document.documentElement.dataset.live));
  changes.addEventListener("changed", () => { changes.close(); location.reload(); });
  addEventListener("pagehide", () => changes.close());
}
})();
