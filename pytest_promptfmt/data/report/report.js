"use strict";
// Text from the run only ever becomes the text of nodes, never markup.
const PHONE = matchMedia("(max-width: 50rem)");  // there a row of the list is as high as its text
const $ = (id) => document.getElementById(id);
const FINE = ["passed", "header-only", "accepted"], UNSEEN = ["skipped"];
const KEPT = 3;  // unchanged lines that are shown round a change
const DOCS = 3;  // docs that are shown, the others on a click
const FOLDED = 4;  // fewer unchanged lines than these are shown
const PARTS = {
  "system instruction": "system", "description": "description", "question": "question", "answer": "answer",
  "gen prefix": "prefix", "target delimiter": "delimiter", "fewshot delimiter": "delimiter", "chat template": "template",
  "system message": "system", "user message": "question", "assistant message": "answer", "reasoning": "prefix",
  "tool call": "call", "tool result": "description",
};
const state = { index: null, shown: [], tops: [0], at: -1, chunks: new Map(), ticket: 0 };

function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

async function body(number) {
  const size = state.index.chunk, chunk = Math.floor(number / size);
  if (!state.chunks.has(chunk)) {
    if (state.chunks.size > 8) state.chunks.delete(state.chunks.keys().next().value);
    state.chunks.set(chunk, unpack($(`chunk-${chunk}`).textContent));
  }
  return (await state.chunks.get(chunk))[number % size];
}

function fill(select, values, all) {
  select.append(make("option", { value: "" }, all));
  for (const [value, text] of values) select.append(make("option", { value }, text));
  select.closest("label").hidden = values.length === 0;
}

function counted(items, get, told = (count, value) => `${value} (${count})`) {
  const counts = new Map();
  for (const item of items) for (const value of [get(item)].flat()) counts.set(value, (counts.get(value) || 0) + 1);
  return [...counts].filter(([value]) => value !== "").sort((one, other) => (one[0] < other[0] ? -1 : 1))
    .map(([value, count]) => [value, told(count.toLocaleString("en"), value)]);
}

function filter() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = { category: 4, format: 1, profile: 2 };
  const chosen = Object.entries(wanted).map(([id, column]) => [column, $(id).value]).filter(([, value]) => value !== "");
  const code = $("code").value, cause = $("cause").value;
  const once = $("once").checked && cause === "", met = new Set();
  // The list is that of the causes, unless it is searched; prompts without a cause are counted above it.
  const causes = once && state.behind.size > 1 && !words.length && !$("category").value;
  const current = state.shown[state.at];
  state.shown = [];
  state.index.items.forEach((item, number) => {
    if (chosen.some(([column, value]) => item[column] !== value)) return;
    if (code && !item[6].includes(code)) return;
    if (cause !== "" && item[5] !== Number(cause)) return;
    if (words.some((word) => !state.texts[number].includes(word))) return;
    if (item[5] === null ? causes && !item[6].length : once && met.has(item[5])) return;
    met.add(item[5]);
    state.shown.push(number);
  });
  $("count").textContent = `${state.shown.length.toLocaleString("en")} of ${state.index.items.length.toLocaleString("en")} prompts`;
  state.tops = [0];
  for (const number of state.shown) state.tops.push(state.tops.at(-1) + rowHeight(state.index.items[number]));
  $("space").style.height = `${state.tops.at(-1)}px`;
  state.at = current === undefined ? -1 : state.shown.indexOf(current);
  $("list").scrollTop = Math.max(0, (state.tops[state.at] || 0) - $("list").clientHeight / 2);
  paint();
}

function paint() {
  const list = $("list"), space = $("space");
  const first = Math.max(0, rowAt(list.scrollTop) - 10);
  const last = Math.min(state.shown.length, rowAt(list.scrollTop + list.clientHeight) + 10);
  const rows = [];
  for (let place = first; place < last; place++) {
    const item = state.index.items[state.shown[place]];
    const row = make("div", {
      class: "item", role: "option", id: `row-${place}`, "aria-selected": place === state.at ? "true" : "false",
      "aria-posinset": place + 1, "aria-setsize": state.shown.length,
    }, make("span", {}, nameOf(item), make("span", { class: "dim" }, others(item[5]))),
    make("span", { class: "what" }, badge(item[4]), newBadge(isNew(item[5]) || item[8]), whatOf(item)));
    row.style.top = `${state.tops[place]}px`;
    row.style.height = `${state.tops[place + 1] - state.tops[place]}px`;
    row.addEventListener("click", () => choose(place));
    rows.push(row);
  }
  space.replaceChildren(...rows);
  if (state.at >= first && state.at < last) list.setAttribute("aria-activedescendant", `row-${state.at}`);
  else list.removeAttribute("aria-activedescendant");
}

function nameOf(item) {
  return item[2] ? `${item[0]} [${item[2]}]` : item[0];
}

function whatOf(item) {
  return ` ${item[6].join(" ")} ${item[5] !== null ? state.index.causes[item[5]].title : item[3]}`;
}

// The height of a row, estimated for a phone from the number of its characters.
function rowHeight(item) {
  const lines = (text, most) => Math.ceil(text.length / most);
  return PHONE.matches ? 6 + 19 * lines(nameOf(item) + others(item[5]), 34) + 17 * lines(item[4] + whatOf(item), 40) : 44;
}

function rowAt(top) {
  const after = state.tops.findIndex((one) => one > top);
  return after < 0 ? state.shown.length : after;
}

function badge(category) {
  return make("span", { class: `badge ${kind(category)}` }, category);
}

// Whether the cause is new since the earlier run, where the report names one.
function isNew(cause) {
  return cause !== null && state.index.causes[cause].new;
}

function newBadge(shown) {
  return shown ? make("span", { class: "badge new" }, "newly found") : null;
}

function kind(category) {
  return UNSEEN.includes(category) ? "dim" : FINE.includes(category) ? "good" : "bad";
}

// How many prompts with the same cause are behind the row that is shown.
function others(cause) {
  const more = cause === null || !$("once").checked || $("cause").value !== "" ? 0 : state.behind.get(cause) - 1;
  return more > 0 ? ` and ${more.toLocaleString("en")} more` : "";
}

function choose(place) {
  if (place < 0 || place >= state.shown.length) return;
  state.at = place;
  const list = $("list"), top = state.tops[place], end = state.tops[place + 1];
  if (top < list.scrollTop) list.scrollTop = top;
  if (end > list.scrollTop + list.clientHeight) list.scrollTop = end - list.clientHeight;
  paint();
  show(state.shown[place]);
}

async function show(number) {
  const ticket = ++state.ticket;
  const item = state.index.items[number];
  const data = await body(number);
  if (ticket !== state.ticket) return;
  const parts = [make("h2", {}, nameOf(item)), make("p", { class: "dim" }, item[3])];
  parts.push(make("p", { class: "headline" }, badge(item[4]), newBadge(isNew(item[5])), " ", ...titleNodes(data.findings.some((found) => found[4] === data.title) ? "" : data.title || "")));
  if (item[5] !== null && state.index.causes[item[5]].because) parts.push(make("p", {}, `explained by ${state.index.causes[item[5]].because}`));
  const rank = (finding) => ["error", "warning", "info"].indexOf(finding[0]);
  for (const finding of data.findings.sort((one, other) => rank(one) - rank(other))) parts.push(findingNode(finding));
  if (item[5] !== null) parts.push(...sameCauseNodes(item[5]));
  if (data.comparison) parts.push(...comparisonNodes(data.comparison));
  if (data.remarks) parts.push(make("pre", {}, data.remarks));
  // A changed prompt is in the comparison already.
  if (data.docs) parts.push(...(data.comparison ? [make("details", {}, make("summary", {}, "whole prompts"), ...promptNodes(data))] : promptNodes(data)));
  if (data.docs && data.docs.some((doc) => doc.requests.some((request) => "text" in request))) {
    const matrix = await choiceMatrix(number, item);
    if (ticket !== state.ticket) return;
    parts.push(...matrix);
  }
  if (data.verdicts) parts.push(...verdictNodes(data.verdicts, !data.comparison));
  const detail = $("detail");
  detail.replaceChildren(...parts);
  detail.scrollTop = 0;
  detail.dataset.item = String(number);
}

function sameCauseNodes(number) {
  const cause = state.index.causes[number], rows = state.behind.get(number);
  if (rows < 2) return [];
  const button = make("button", { type: "button" }, `show all ${rows.toLocaleString("en")}`);
  button.addEventListener("click", () => { $("cause").value = String(number); filter(); $("list").focus(); });
  const more = cause.tasks - cause.names.length;
  const whose = cause.tasks === 1 ? "this task" : `${cause.tasks.toLocaleString("en")} tasks`;
  const head = make("p", {}, `${rows.toLocaleString("en")} prompts of ${whose} have the same cause `, button);
  if (cause.tasks === 1) return [head];  // its name is above
  return [head, make("p", { class: "dim" }, cause.names.join(", ") + (more > 0 ? ` and ${more.toLocaleString("en")} more` : ""))];
}

function findingNode([severity, code, name, where, message, saw, todo, isFirst]) {
  return make("div", { class: `finding ${severity}` }, make("strong", {}, `${code} ${message}`), ` [${name}] `, newBadge(isFirst),
    make("div", { class: "dim" }, where), saw ? make("div", {}, "saw: ", make("code", {}, ...blanked(saw))) : null,
    make("div", {}, `do: ${todo}`));
}

// Only what stood and stands in a prompt has dots for spaces, not the words about it.
function titleNodes(title) {
  const found = /^(.*) → (.*?)( \((?:from|before|in) [^()]*\))$/s.exec(title);
  const shown = (text) => /^(?:\||\*? ?")/.test(text) ? blanked(text) : [text];  // not a filter or another fact
  return found ? [...shown(found[1]), " → ", ...shown(found[2]), found[3]] : [title];
}

function blanked(text) {
  if (!$("blanks").checked) return [text];
  return text.split(/( |\n)/).filter((piece) => piece !== "").map((piece) => {
    if (piece === " ") return [make("span", { class: "blank" }, "·"), make("wbr", {})];  // a line may end behind it
    if (piece === "\n") return make("span", { class: "blank" }, "↵\n");
    return piece;
  }).flat();
}

function promptNodes(data) {
  const shown = [], used = new Map(), marks = new Map();
  for (const doc of data.docs) {
    const nodes = [];
    shown.push(nodes);
    nodes.push(make("h3", {}, doc.heading || `doc ${doc.doc}`));
    doc.prompts.forEach((prompt, number) => {
      const box = make("pre", { class: "prompt" });
      if ($("tokens").checked && prompt.tokens) {
        for (const [shown, id] of prompt.tokens) {
          box.append(make("span", { class: "token", title: `id ${id}` }, shown, $("ids").checked ? make("small", {}, String(id)) : ""));
          if (shown.includes("⏎")) box.append("\n");
        }
      } else {
        for (const [text, origin] of prompt.spans) {
          const [part, key, position, shot, field] = data.origins[origin];
          used.set(part, PARTS[part]);
          if (field !== null) marks.set("a column of the doc", "column");
          if (shot !== null) marks.set("shot", "shot");
          const learnt = key === "generation";
          if (learnt) marks.set("learnt: inside {% generation %}", "learnt");
          const kind = [PARTS[part], learnt ? "learnt" : "", field !== null ? "column" : "", shot !== null ? "shot" : ""].join(" ");
          const title = [part, position, key, field !== null ? `column ${field}` : null, shot !== null ? `shot ${shot}` : null];
          box.append(make("span", { class: kind, title: title.filter(Boolean).join(" · ") }, ...blanked(text)));
        }
        box.append(make("span", { class: "end" }, prompt.cut ? "… cut here" : "⟨end⟩"));
      }
      nodes.push(box);
      if ($("tokens").checked && !prompt.tokens) {
        nodes.push(make("p", { class: "dim" }, prompt.no_tokens || "this profile has no tokenizer"));
      } else if (prompt.tokens) nodes.push(make("p", { class: "dim" }, `${prompt.tokens.length} tokens`));
      nodes.push(requestNode(doc.requests.filter((request) => request.prompt === number)));
    });
    nodes.push(requestNode(doc.requests.filter((request) => request.prompt === null)));
  }
  const nodes = firstOf(shown);
  if (!used.size) return nodes;
  const legend = make("p", { class: "legend dim" }, "colours: ");
  for (const [part, kind] of [...used, ...marks]) legend.append(make("span", { class: kind }, part));
  return [...nodes, legend];
}

// The nodes of the first docs, and those of the others folded.
function firstOf(groups) {
  const [first, rest] = [groups.slice(0, DOCS), groups.slice(DOCS)].map((some) => some.flat().filter(Boolean));
  if (!rest.length) return first;
  return [...first, make("details", {}, make("summary", {}, `… and ${groups.length - DOCS} more`), ...rest)];
}

function requestNode(requests) {
  if (!requests.length) return null;
  const list = make("ul", {});
  for (const request of requests) {
    if (request.settings) for (const [name, value] of request.settings) list.append(make("li", {}, make("code", {}, `${name} ${value}`)));
    else list.append(make("li", { class: request.gold ? "gold" : "" }, make("code", {}, request.text), request.gold ? " (right)" : ""));
  }
  return list;
}

function comparisonNodes(parts) {
  const shown = [];
  for (const part of parts) {
    const table = make("table", { class: "diff" }, make("caption", { class: "dim" }, part.title),
      make("tr", {}, ...state.index.sides.map((side) => make("th", { scope: "col" }, side))));
    table.append(...folded(part.rows));
    shown.push([table]);
  }
  return [make("h3", {}, "before and after"), ...firstOf(shown)];
}

function differ([before, after]) {
  return before === null || after === null || before.some((piece) => piece[1]) || after.some((piece) => piece[1]);
}

function pair([before, after], differs) {
  return make("tr", { class: differs ? "" : "same" }, side(before, "removed", "del", differs), side(after, "added", "ins", differs));
}

// Rows of the table; a long stretch of unchanged lines is one button that brings them back.
function folded(rows) {
  const nodes = [];
  const changed = rows.map(differ);
  for (let at = 0; at < rows.length;) {
    let end = at;
    while (end < rows.length && changed[end] === changed[at]) end++;
    const first = at === 0 ? at : at + KEPT, last = end === rows.length ? end : end - KEPT;
    if (changed[at] || last - first < FOLDED) nodes.push(...rows.slice(at, end).map((row) => pair(row, changed[at])));
    else {
      nodes.push(...rows.slice(at, first).map((row) => pair(row, false)));
      const button = make("button", { type: "button" }, `… ${last - first} unchanged lines`);
      const fold = make("tr", {}, make("td", { colspan: 2 }, button));
      const hidden = rows.slice(first, last);
      button.addEventListener("click", () => fold.replaceWith(...hidden.map((row) => pair(row, false))));
      nodes.push(fold, ...rows.slice(last, end).map((row) => pair(row, false)));
    }
    at = end;
  }
  return nodes;
}

// A line begins with two characters that are not of its text, unless it is the title of a section.
function side(pieces, kind, tag, differs) {
  const cell = make("td", { class: differs && pieces !== null ? kind : "" });
  const line = (pieces || []).map((piece) => piece[0]).join("");
  const gutter = /^(\| ?|\* |  )/.exec(line);
  if (pieces !== null && !gutter) cell.classList.add("section");
  let skip = gutter ? gutter[0].length : 0;
  if (gutter) cell.append(make("span", { class: "gutter" }, gutter[0]));
  const shown = gutter && (gutter[0][0] === "|" || line[skip] === '"') ? blanked : (text) => [text];
  for (const [text, marked] of pieces || []) {
    const rest = text.slice(skip);
    skip -= text.length - rest.length;
    if (rest) cell.append(make(marked ? tag : "span", {}, ...shown(rest)));
  }
  return cell;
}

function summarize() {
  const nodes = [];
  for (const [category, text] of counted(state.index.items, (item) => item[4], (count, name) => `${count} ${name === "finding" ? "with findings" : name}`)) {
    const button = make("button", { type: "button", class: kind(category) }, text);
    button.addEventListener("click", () => { $("category").value = category; filter(); $("list").focus(); });
    nodes.push([state.index.categories.indexOf(category), button]);
  }
  const rank = ([place]) => (place < 0 ? state.index.categories.length : place);
  $("summary").append(...nodes.sort((one, other) => rank(one) - rank(other)).map(([, button]) => button));
  if (state.index.accept) $("summary").append(make("span", {}, "accept all: ", commandNode(state.index.accept), " ", copyNode(state.index.accept)));
}

// A line ends between arguments, not within one.
function commandNode(text) {
  return make("code", {}, ...text.split(" ").flatMap((word) => [make("span", { class: "word" }, word), " "]).slice(0, -1));
}

function copyNode(text) {
  const button = make("button", { type: "button", class: "copy" }, "copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      button.textContent = "not allowed here";
    }
  });
  return button;
}

async function choiceMatrix(number, item) {
  const same = state.index.items.map((other, at) => [other, at]).filter(([other]) => other[0] === item[0] && other[3] === item[3]);
  const columns = [];
  for (const [other, at] of same.slice(0, 24)) {
    const data = at === number ? await body(number) : await body(at);
    if (data.docs && data.docs.some((doc) => doc.requests.some((request) => request.tokens))) columns.push([other[2], data.docs]);
  }
  if (!columns.length) return [];
  const head = make("tr", {}, make("th", { scope: "col" }, "doc"), make("th", { scope: "col" }, "choice"));
  for (const [profile] of columns) head.append(make("th", { scope: "col" }, profile));
  const table = make("table", {}, head);
  columns[0][1].forEach((doc, docAt) => doc.requests.forEach((request, at) => {
    if (!("text" in request)) return;
    const row = make("tr", { class: request.gold ? "gold" : "" }, make("td", {}, String(doc.doc)), make("td", {}, request.text));
    for (const [, docs] of columns) {
      const cell = make("td", {});
      const found = docs[docAt] && docs[docAt].requests[at];
      for (const token of (found && found.tokens) || []) cell.append(make("span", { class: "token" }, token), " ");
      row.append(cell);
    }
    table.append(row);
  }));
  return [make("h3", {}, "what each choice becomes"), make("div", { class: "scroll" }, table)];
}

function verdictNodes(verdicts, isOpen) {
  const [one, many, wrong] = verdicts.things;
  const head = make("tr", {}, make("th", { scope: "col" }, one));
  for (const name of verdicts.pipelines) head.append(make("th", { scope: "col" }, name));
  const table = make("table", {}, head);
  for (const [kind, id, cells, failed] of verdicts.rows) {
    const row = make("tr", { class: failed ? "failed" : "" }, make("th", { scope: "row", class: "mono" }, `${kind} ${id}`));
    for (const cell of cells) row.append(make("td", { class: `verdict-${cell.split(/[(: ]/)[0].toLowerCase()}` }, cell));
    table.append(row);
  }
  const failed = verdicts.rows.filter((row) => row[3]).length;
  const more = make("details", { class: "scroll" }, make("summary", {}, `${verdicts.rows.length} ${many}, ${failed} ${wrong}`), table);
  more.open = isOpen;
  return [make("h3", {}, verdicts.title), verdicts.nothing ? make("p", {}, verdicts.nothing) : null,
    verdicts.rows.length ? more : null].filter(Boolean);
}

function redraw() {
  if (state.at >= 0) show(state.shown[state.at]);
}

async function start() {
  state.index = await unpack($("index").textContent);
  const items = state.index.items;
  state.texts = items.map((item) => `${item[0]} ${item[2]} ${item[3]} ${item[4]} ${item[6].join(" ")}`.toLowerCase());
  state.behind = new Map();
  for (const item of items) state.behind.set(item[5], (state.behind.get(item[5]) || 0) + 1);
  fill($("category"), counted(items, (item) => item[4]), "all");
  fill($("format"), counted(items, (item) => item[1]), "all");
  fill($("profile"), counted(items, (item) => item[2]), "all");
  fill($("code"), counted(items, (item) => item[6]), "any");
  fill($("cause"), state.index.causes.map((cause, number) => [number,
    `${cause.category}, ${state.behind.get(number) || 0}: ${cause.title.slice(0, 90).replaceAll(" ", "\u00a0")}`])
    .filter(([number]) => state.behind.has(number)), "any");
  summarize();
  $("filters").addEventListener("input", filter);
  if (matchMedia("(max-width: 50rem)").matches) $("choices").open = false;
  $("once").addEventListener("change", filter);
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  for (const id of ["blanks", "tokens", "ids"]) $(id).addEventListener("change", redraw);
  $("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  let waiting = false;
  $("list").addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; paint(); });
  });
  addEventListener("resize", paint);
  document.addEventListener("keydown", (event) => {
    const typing = ["INPUT", "SELECT"].includes(document.activeElement.tagName);
    if (event.key === "Escape") { $("filters").reset(); filter(); $("list").focus(); return; }
    if (event.ctrlKey || event.metaKey || event.altKey || (typing && document.activeElement.type !== "checkbox")) return;
    const page = Math.floor($("list").clientHeight / 44) || 1;
    const moves = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page };
    const reading = $("detail").contains(document.activeElement);  // there the arrows scroll, as everywhere
    if (reading && !["/", "j", "k"].includes(event.key)) return;
    if (event.key === "/") { $("search").focus(); event.preventDefault(); }
    else if (event.key === "Home") { choose(0); event.preventDefault(); }
    else if (event.key === "End") { choose(state.shown.length - 1); event.preventDefault(); }
    else if (event.key in moves) {
      choose(Math.max(0, Math.min(state.shown.length - 1, state.at + moves[event.key])));
      event.preventDefault();
    }
  });
  filter();
  if (items.length) choose(0);
  document.documentElement.dataset.ready = "yes";
}

start();
