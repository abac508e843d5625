"use strict";
// Everything that this script puts on the page is text: what was measured never becomes markup.

const $ = (id) => document.getElementById(id);

function element(name, told = {}, ...content) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(told)) made.setAttribute(key, value);
  made.append(...content.filter((part) => part !== null && part !== ""));
  return made;
}

// The chains: each different value is stored once, parts before what they are part of.

function unpacked({ shapes, entries }) {
  const made = [];
  for (const entry of entries) {
    if (!Array.isArray(entry)) {
      made.push(entry);
      continue;
    }
    const [shape, ...places] = entry;
    const values = places.map((place) => made[place]);
    made.push(shape ? Object.fromEntries(shapes[shape - 1].map((key, at) => [key, values[at]])) : values);
  }
  return made[made.length - 1];
}

let known = null;

function numbers() {
  if (known === null) {
    const told = unpacked(JSON.parse($("chains").textContent));
    known = new Map(told.names.map((name, at) => [name, { chain: told.chains[at], shown: told.shown[at] }]));
  }
  return known;
}

// The fragment holds what is chosen and which chain is open, so that a link shows the same to anyone.

const CHOICES = [...document.querySelectorAll("select[data-key]")];

function fragment() {
  const text = location.hash.slice(1);
  if (text.includes("=")) return new URLSearchParams(text);
  return new URLSearchParams(text && document.getElementById(decoded(text)) ? { at: decoded(text) } : {});
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function written(number) {
  const told = new URLSearchParams();
  for (const choice of CHOICES) if (choice.value) told.set(choice.dataset.key, choice.value);
  if (number) told.set("number", number);
  const text = told.toString().replaceAll("%2F", "/").replaceAll("+", "%20");
  return text ? `#${text}` : location.pathname + location.search;
}

function show() {
  const told = fragment();
  if (!told.has("at")) {
    for (const choice of CHOICES) {
      const wanted = told.get(choice.dataset.key) ?? "";
      choice.value = [...choice.options].some((option) => option.value === wanted) ? wanted : "";
    }
    filter();
  }
  const number = told.get("number");
  if (number && numbers().has(number)) open(number);
  else if ($("chain").open) $("chain").close();
  if (number && !numbers().has(number)) $("told").textContent = `No number is called ${number}.`;
}

// What is chosen: an experiment narrows everything, a verdict the claims, a level the ledgers.

function filter() {
  const chosen = Object.fromEntries(CHOICES.map((choice) => [choice.dataset.key, choice.value]));
  const hide = (selector, key, name) => {
    for (const one of document.querySelectorAll(selector)) {
      one.hidden = Boolean(chosen[key]) && one.dataset[name] !== chosen[key];
    }
  };
  hide("[data-experiment]", "experiment", "experiment");
  hide(".claim", "verdict", "verdict");
  hide("tr[data-level]", "level", "level");
  emptied(".claims", ".claim", chosen);
  emptied("tbody[data-experiment]", ".region", chosen);
  const claims = [...document.querySelectorAll(".claim")].filter(visible).length;
  const regions = [...document.querySelectorAll(".region")].filter(visible).length;
  const any = Object.values(chosen).some(Boolean);
  $("clear").hidden = !any;
  $("told").textContent = any ? `Shown: ${counted(claims, "claim")}, ${counted(regions, "ledger")}` : "";
}

function emptied(groups, parts, chosen) {
  for (const group of document.querySelectorAll(groups)) {
    const foreign = chosen.experiment && group.dataset.experiment !== chosen.experiment;
    group.hidden = Boolean(foreign) || ![...group.querySelectorAll(parts)].some((part) => !part.hidden);
  }
}

function visible(one) {
  return !one.hidden && !one.closest("[hidden]");
}

function counted(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

for (const choice of CHOICES) {
  choice.addEventListener("change", () => {
    history.replaceState(null, "", written(""));
    filter();
  });
}
$("clear").addEventListener("click", () => {
  for (const choice of CHOICES) choice.value = "";
  history.replaceState(null, "", written(""));
  filter();
  $("f-experiment").focus();
});
$("filters").addEventListener("submit", (event) => event.preventDefault());

// A chain opens above the page; closed, the focus is where it was.

let opener = null;

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-n]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  opener = link;
  const wanted = written(link.dataset.n);
  // Not by location.hash: its event comes in a later turn, and until then the address names what is not shown.
  if (location.hash !== wanted) history.pushState(null, "", wanted);
  show();
});

function linkTo(number) {
  return document.querySelector(`main a[data-n="${CSS.escape(number)}"]`);
}

function open(number) {
  const { chain, shown } = numbers().get(number);
  const dialog = $("chain");
  conceal();
  fill(number, chain, shown);
  for (const link of document.querySelectorAll("a.open")) link.classList.remove("open");
  linkTo(number)?.classList.add("open");
  if (!dialog.open) {
    if (opener === null || opener.dataset.n !== number) opener = linkTo(number);
    if (opener?.closest("#found")) opener = $("search");
    dialog.showModal();
  }
  $("chain-body").scrollTop = 0;
  $("chain-title").focus();
}

$("chain").addEventListener("close", () => {
  const number = fragment().get("number");
  if (number) history.replaceState(null, "", written(""));
  const back = opener ?? (number ? linkTo(number) : null);
  opener = null;
  back?.closest("details")?.setAttribute("open", "");
  back?.focus();
});
$("chain").addEventListener("click", (event) => {
  if (event.target === $("chain")) $("chain").close();
});
$("close").addEventListener("click", () => $("chain").close());
$("share").addEventListener("click", (event) => copy(event.currentTarget, location.href));
window.addEventListener("hashchange", show);

function fill(number, chain, shown) {
  const unit = chain.unit && typeof chain.value === "number" ? ` ${chain.unit}` : "";
  $("chain-place").textContent = `${chain.place}, run ${chain.run}`;
  $("chain-title").textContent = `${chain.text}${unit}`;
  $("chain-title").classList.toggle("long", chain.text.length > 60);
  $("chain-body").replaceChildren(
    summary(chain, shown),
    evidence(chain),
    machine(chain),
    again(chain, shown),
  );
}

function list(pairs) {
  const told = element("dl");
  for (const [label, text] of pairs) {
    if (text) told.append(element("dt", {}, label), element("dd", {}, text));
  }
  return told;
}

function section(title, ...content) {
  return element("section", {}, element("h3", {}, title), ...content);
}

function summary(chain, shown) {
  return section("Number", list([
    ["value", shown.value],
    ["recomputed", `${chain.recomputed}${chain.recomputed === "the same" ? ", from the rows below" : ""}`],
    ["interval", shown.interval],
    ["processes", shown.processes],
    ...chain.flags.map((flag) => ["flag", flag]),
    ...chain.because.map((reason) => ["because", reason]),
    ["formula", chain.asked],
  ]));
}

function evidence(chain) {
  const about = (cell) => chain.rows.filter((rows) => rows.file.startsWith(`${cell.cell}/`));
  const title = chain.cells.length === 1 ? "Process and its rows" : `${chain.cells.length} processes and their rows`;
  if (!chain.cells.length) return section("Rows", element("p", { class: "under" }, "No rows: nothing was measured."));
  return section(title, ...chain.cells.map((cell, at) => measured(cell, about(cell), at === 0)));
}

function measured(cell, rows, first) {
  const count = rows.reduce((sum, one) => sum + one.count, 0);
  const body = element("div");
  for (const one of rows) body.append(listed(one));
  if (cell.log) body.append(logged(cell.log));
  for (const finding of cell.findings) body.append(element("p", { class: "file" }, finding));
  if (cell.verdict !== undefined) {
    body.append(list([
      ["verdict", [cell.verdict, ...cell.reasons].join("; ")],
      ["attempt", `${cell.attempt}, ${cell.started}, ${cell.duration_s} s`],
      ["code", `${(cell.commit ?? "no commit").slice(0, 12)}, ${codeState(cell.dirty)}`],
      ["record", `${cell.provenance}, sha256 ${cell.provenance_sha256.slice(0, 16)}`],
    ]));
    body.append(element("p", { class: "file" }, element("span", {}, "measured by the command")), command(cell.command));
  }
  const made = element("details", { class: "cell" },
    element("summary", {}, cell.cell, " ", element("span", {}, `${cell.verdict ?? "no record"}, ${counted(count, "row")}`)),
    body);
  made.open = first;
  return made;
}

function codeState(dirty) {
  return dirty === null ? "no git" : dirty ? "code changed since" : "code as committed";
}

function listed(rows) {
  const shown = [rows.first, rows.last].filter((row, at) => row && (at === 0 || rows.count > 1));
  const lines = element("ol", { class: "lines rows" });
  shown.forEach((row, at) => {
    if (at && rows.count > 2) lines.append(line("", "⋮", "gap"));
    lines.append(line(row.line, row.text, ""));
  });
  const more = rows.lines.length > 6 ? ", ..." : "";
  const where = `line${rows.count === 1 ? "" : "s"} ${rows.lines.slice(0, 6).join(", ")}${more} (${counted(rows.count, "row")})`;
  const file = element("p", { class: "file" }, rows.file, ": ", element("span", {}, where));
  return element("div", {}, file, lines);
}

function line(at, text, kind) {
  return element("li", {}, element("span", { class: `at ${kind}` }, String(at)), element("span", { class: `row ${kind}` }, text));
}

function logged(log) {
  const lines = element("ol", { class: "lines log" });
  const events = [
    ...log.sections.map((one) => ({ ...one, kind: "gap" })),
    ...log.messages.map((one) => ({ ...one, kind: "marked" })),
  ].sort((one, other) => one.line - other.line);
  for (const event of events) {
    event.text.split("\n").forEach((text, at) => lines.append(line(event.line + at, text, at ? "" : event.kind)));
  }
  const told = log.messages.length ? counted(log.messages.length + log.further, "message") : "no messages";
  const file = element("p", { class: "file" }, log.file, ": ", element("span", {}, `what torch logged in these calls, ${told}`));
  const more = log.further ? element("p", { class: "file" }, element("span", {}, `and ${counted(log.further, "message")} more`)) : null;
  return element("div", {}, file, lines, ...(more ? [more] : []));
}

function machine(chain) {
  const gpu = typeof chain.gpu === "string" ? chain.gpu : JSON.stringify(chain.gpu);
  return section("Machine", list([...Object.entries(chain.environment).map(([key, value]) => [key, String(value)]), ["GPU", gpu]]));
}

function again(chain, shown) {
  const told = section("See it in a terminal, measure it again", command(shown.audit));
  const cell = chain.cells.find((one) => one.by_hand !== undefined);
  if (cell) told.append(command(cell.by_hand), command(cell.by_snakemake));
  return told;
}

function command(text) {
  const button = element("button", { type: "button", "aria-label": `Copy the command ${text.slice(0, 60)}` }, "Copy");
  button.addEventListener("click", () => copy(button, text));
  return element("div", { class: "command" }, element("code", {}, text), button);
}

async function copy(button, text) {
  const label = button.dataset.label ?? button.textContent;
  button.dataset.label = label;
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Where a page may not write to the clipboard by itself, a selection may still be copied.
    const field = element("textarea", { class: "quiet", readonly: "" });
    field.value = text;
    button.after(field);
    field.select();
    done = document.execCommand("copy");
    field.remove();
    button.focus();
  }
  button.textContent = done ? "Copied" : "Not copied";
  setTimeout(() => { button.textContent = label; }, 1600);
}

// Find a number by its text or its place.

const LIMIT = 40;

function search() {
  const query = $("search").value.trim().toLowerCase();
  $("found").hidden = query === "";
  $("search").setAttribute("aria-expanded", String(query !== ""));
  if (query === "") return;
  const words = query.split(/\s+/);
  const ranked = [];
  for (const [name, { chain }] of numbers()) {
    const text = chain.text.toLowerCase();
    const place = `${name} ${chain.place} ${text}`.toLowerCase();
    const rank = text === query || text.startsWith(`${query} `) ? 0
      : text.startsWith(query) ? 1 : text.includes(query) ? 2 : words.every((word) => place.includes(word)) ? 3 : null;
    if (rank !== null) ranked.push([rank, name, chain]);
  }
  ranked.sort((one, other) => one[0] - other[0]);
  const more = ranked.length > LIMIT ? `, the first ${LIMIT} shown` : "";
  $("found-count").textContent = `${counted(ranked.length, "number")}${more}`;
  $("found").querySelector("ol").replaceChildren(...ranked.slice(0, LIMIT).map(([, name, chain]) =>
    element("li", {}, element("a", { href: `#number=${encodeURIComponent(name)}`, "data-n": name },
      element("b", {}, chain.text.length > 44 ? `${chain.text.slice(0, 42)}…` : chain.text), element("span", {}, chain.place)))));
}

$("search").addEventListener("input", search);
$("search").addEventListener("focus", search);
$("search").addEventListener("keydown", (event) => {
  const first = $("found").querySelector("a");
  if (event.key === "Enter" && first) first.click();
  else if (event.key === "ArrowDown" && first) first.focus();
  else return;
  event.preventDefault();
});
$("found").addEventListener("keydown", (event) => {
  const links = [...$("found").querySelectorAll("a")];
  const at = links.indexOf(document.activeElement);
  if (event.key === "ArrowDown") links[at + 1]?.focus();
  else if (event.key === "ArrowUp") (links[at - 1] ?? $("search")).focus();
  else return;
  event.preventDefault();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || $("chain").open || $("found").hidden) return;
  $("search").focus();
  conceal();
});
document.addEventListener("pointerdown", (event) => {
  if (!event.target.closest(".search")) conceal();
});

function conceal() {
  $("found").hidden = true;
  $("search").setAttribute("aria-expanded", "false");
}

// Dark or light: the reader's system, unless the button says otherwise. A browser may refuse to remember it.

const DARK = matchMedia("(prefers-color-scheme: dark)");

function remembered() {
  try {
    return localStorage.getItem("complab-theme");
  } catch {
    return null;
  }
}

function theme(choice) {
  if (choice) document.documentElement.dataset.theme = choice;
  const dark = choice ? choice === "dark" : DARK.matches;
  $("theme").textContent = dark ? "Light" : "Dark";
  $("theme").setAttribute("aria-label", dark ? "Light colours" : "Dark colours");
}

$("theme").addEventListener("click", () => {
  const choice = $("theme").textContent.toLowerCase();
  theme(choice);
  try {
    localStorage.setItem("complab-theme", choice);
  } catch {
    return;
  }
});
DARK.addEventListener("change", () => theme(document.documentElement.dataset.theme));

theme(remembered() ?? "");
show();
