// What kvplane is worth: hit rate, cache fullness, duplication, the prefixes that save the most.

import { headers } from "./kept.js";
import { known, now } from "./known.js";
import { plot, sizeOf } from "./plot.js";
import { counted, make, percent, say, short, standing } from "./words.js";

const HOUR = 3_600_000;
const parts = {};
let built = false;
let asked = 0;

/** Reads the last hour, as the server kept it, at most every ten seconds. */
function refresh() {
  if (!known.linked || Date.now() - asked < 10_000) return;
  asked = Date.now();
  fetch("v1/history", { headers: headers(), cache: "no-store" })
    .then((response) => (response.ok ? response.json() : Promise.reject(response.status)))
    .then((past) => (known.past = past))
    .catch(() => {});
}

function build() {
  built = true;
  const tile = (name, title, ...more) => {
    parts[name] = { number: make("b"), note: make("span", { class: "note" }) };
    return make("div", { class: "tile", "data-tile": name }, make("span", { class: "title" }, title), parts[name].number, parts[name].note, ...more);
  };
  parts.hits = make("canvas", { role: "img", "aria-label": "Hit rate over the last hour" });
  parts.prefixes = make("ol", { class: "prefixes" });
  const top = make("details", { class: "tile top" }, make("summary", {}, "Top prefixes"), parts.prefixes);
  document.getElementById("value").append(
    tile("hit-rate", "Hit rate", parts.hits),
    tile("asked", "Tokens asked"),
    tile("fullness", "Device cache full"),
    tile("copies", "Copies of a block"),
    top,
  );
}

export function draw() {
  if (!built) build();
  refresh();
  const { queries, duplication } = known;
  if (!queries) return;
  const set = (name, number, note) => {
    say(parts[name].number, number);
    say(parts[name].note, note);
  };
  set("hit-rate", percent(queries.tokens_found, queries.tokens_asked), queries.questions ? "prompt tokens cached on the best engine" : "no questions yet");
  set("asked", short(queries.tokens_asked), counted(queries.questions, "question"));
  const { used, capacity, unknown } = fullness();
  set("fullness", percent(used, capacity), capacity ? `${short(used)} of ${short(capacity)} blocks${unknown ? `; ${counted(unknown, "rank")} unknown` : ""}` : "engines do not report their capacity");
  const { blocks, distinct_blocks } = duplication;
  set("copies", distinct_blocks ? `× ${(blocks / distinct_blocks).toFixed(2)}` : "–", `${short(distinct_blocks)} different blocks`);
  drawPrefixes(queries.top_prefixes);
  drawHits();
}

/** Over engines that are connected and say how many blocks they have. */
function fullness() {
  const sum = { used: 0, capacity: 0, unknown: 0 };
  for (const rank of known.ranks.values()) {
    if (standing(rank) === "away") continue;
    if (rank.capacity_blocks === null) sum.unknown += 1;
    else {
      sum.used += Math.min(rank.used_blocks, rank.capacity_blocks);
      sum.capacity += rank.capacity_blocks;
    }
  }
  return sum;
}

let listed = "";
function drawPrefixes(prefixes) {
  const wanted = JSON.stringify(prefixes);
  if (wanted === listed) return;
  listed = wanted;
  const line = ({ prefix, model, tokens, tokens_found }) =>
    make("li", { title: `model ${model || "(none)"}` }, make("code", {}, prefix.slice(0, 8)), ` ${short(tokens)} tokens: ${short(tokens_found)} found`);
  parts.prefixes.replaceChildren(...(prefixes.length ? prefixes.slice(0, 5).map(line) : [make("li", {}, "none yet")]));
}

let plotted = ""; // from what the plot was drawn
/** The share of tokens that were found between two samples. To draw asks for the page's layout, so it is done when something is new. */
function drawHits() {
  const about = JSON.stringify([known.past?.fleet.at(-1)?.unix_ms, document.documentElement.dataset.theme, window.innerWidth]);
  if (about === plotted) return;
  plotted = about;
  const samples = known.past?.fleet ?? [];
  const times = samples.map((sample) => sample.unix_ms);
  const values = samples.map((sample, at) => {
    const before = samples[at - 1];
    const tokens = before ? sample.tokens_asked - before.tokens_asked : 0;
    return tokens > 0 ? (100 * (sample.tokens_found - before.tokens_found)) / tokens : null;
  });
  const colour = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim();
  const span = Math.min(HOUR, Math.max(60_000, now() - (times[0] ?? now())));
  plot(parts.hits, sizeOf(parts.hits), times, [{ colour, values }], now(), span);
}
