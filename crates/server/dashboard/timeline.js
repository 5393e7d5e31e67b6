// Events, newest first: incidents, of which what healed is folded.

import { incidents } from "./incidents.js";
import { known } from "./known.js";
import { clock, counted, make, mark, say, since } from "./words.js";

const SHOWN = 200;
const NAMED = 12; // ranks of an incident that are listed
const lines = new Map(); // number -> {line, told}
let drawn = ""; // what the list shows: of which run of the plane, which engine, what of it

/** `changed` runs when other things are to be shown. */
export function begin(changed) {
  document.getElementById("problems").addEventListener("change", changed);
}

export function draw(engine) {
  const list = document.getElementById("timeline");
  const problems = document.getElementById("problems").checked;
  const remarks = known.remarks.filter((remark) => !engine || remark.engine === engine);
  const wanted = ({ newest, healed }) => !problems || (newest.mood === "bad" && healed === null);
  const shown = incidents(remarks).filter(wanted).slice(0, SHOWN);
  const what = JSON.stringify([known.plane?.id, engine, problems]);
  const anew = drawn !== what;
  if (anew) {
    drawn = what;
    lines.clear();
    list.replaceChildren();
  }
  // Lines that stay are left alone: somebody may be at one of them.
  const numbers = new Set(shown.map((incident) => incident.number));
  for (const [number, { line }] of lines) {
    if (numbers.has(number)) continue;
    line.remove();
    lines.delete(number);
  }
  let at = list.firstElementChild;
  for (const incident of shown) {
    const told = JSON.stringify([incident.remarks.map((remark) => [remark.number, remark.times]), incident.healed]);
    let entry = lines.get(incident.number);
    if (!entry) {
      entry = { line: make("li", { class: anew ? "" : "fresh" }), told: "" };
      lines.set(incident.number, entry);
    }
    if (entry.told !== told) {
      entry.told = told;
      fill(entry.line, incident);
    }
    if (entry.line === at) at = at.nextElementSibling;
    else list.insertBefore(entry.line, at);
  }
  const empty = document.getElementById("timeline-empty");
  empty.hidden = shown.length > 0 || known.members === 0;
  say(empty, problems ? "No open problems." : "No events yet.");
}

function link(remark) {
  return make("a", { href: `#/engine/${encodeURIComponent(remark.engine)}` }, `${remark.engine}/${remark.rank}`);
}

function fill(line, { remarks, newest, healed }) {
  mark(line, "data-mood", newest.mood);
  mark(line, "data-topic", newest.topic);
  line.toggleAttribute("data-healed", healed !== null);
  const time = make("time", { datetime: new Date(newest.unix_ms).toISOString() }, clock(newest.unix_ms));
  const ranks = [...new Map(remarks.toReversed().map((remark) => [`${remark.engine}/${remark.rank}`, remark])).values()];
  const times = remarks.reduce((sum, remark) => sum + remark.times, 0);
  const again = times > ranks.length ? [make("span", { class: "times" }, ` ×${times}`)] : [];
  const who = newest.engine === undefined ? [] : ranks.length > 1 ? [make("b", {}, counted(ranks.length, "rank")), " "] : [link(newest), " "];
  if (newest.engine === undefined && remarks.length > 1) {
    const [head] = newest.words.split(":");
    const open = line.querySelector("details")?.open ? { open: "" } : {};
    const all = remarks.slice(-NAMED).map((remark) => make("p", {}, remark.words));
    if (remarks.length > NAMED) all.unshift(make("p", {}, `the last ${NAMED} of ${remarks.length}:`));
    line.replaceChildren(make("details", open, make("summary", {}, time, head, make("span", { class: "times" }, ` ×${remarks.length}`)), ...all));
    return;
  }
  if (healed === null && ranks.length === 1) {
    line.replaceChildren(time, ...who, newest.words, ...again);
    return;
  }
  const state = healed === null ? [] : [make("span", { class: "healed" }, `✓ recovered after ${since(0, healed)} `)];
  const words = healed === null ? newest.words : newest.words.split(/[:;]/)[0];
  const listed = ranks.slice(0, NAMED).flatMap((remark, at) => [at ? ", " : "", link(remark)]);
  if (ranks.length > NAMED) listed.push(` and ${ranks.length - NAMED} more`);
  const rest = make("p", {}, ...(healed === null ? [] : [newest.words, " "]), ...listed);
  const open = line.querySelector("details")?.open ? { open: "" } : {};
  line.replaceChildren(make("details", open, make("summary", {}, time, ...state, ...who, words, ...again), rest));
}
