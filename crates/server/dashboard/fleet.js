// The fleet at a glance: a card for each engine, a cell for each rank.

import { known, key } from "./live.js";
import { LEGEND, MARKS, TIERS, lag, make, mark, say, sentence, short, standing, tierNames, total } from "./words.js";

const cards = new Map(); // engine -> {card, cells: Map(rank -> parts)}
let members = -1;
let wanted = "";

export function begin() {
  const legend = document.getElementById("legend");
  for (const [state, meaning] of LEGEND) {
    const sign = make("span", { class: "mark", "data-standing": state }, MARKS[state]);
    legend.append(make("li", { title: meaning }, sign, ` ${state}`));
  }
  for (const tier of TIERS.filter((tier) => tier !== "unknown")) {
    legend.append(make("li", { title: `blocks: ${tier}` }, make("span", { class: "tier", "data-tier": tier }, tier)));
  }
  const filter = document.getElementById("filter");
  filter.addEventListener("input", () => {
    wanted = filter.value.trim().toLowerCase();
    hideOthers();
  });
}

export function draw() {
  if (members !== known.members) {
    members = known.members;
    build();
  }
  for (const rank of known.ranks.values()) drawCell(rank);
  if (wanted) hideOthers();
  const empty = document.getElementById("fleet-empty");
  empty.hidden = known.ranks.size > 0 || known.plane === null;
  say(empty, "No engine yet. Add one: kvplane engines add NAME --engine vllm=tcp://HOST:5557,model=NAME");
}

function build() {
  const fleet = document.getElementById("fleet");
  const focused = document.activeElement?.closest("#fleet .cell");
  const held = focused && [focused.dataset.engine, Number(focused.dataset.rank)];
  cards.clear();
  for (const rank of known.ranks.values()) {
    const entry = cards.get(rank.engine) ?? buildCard(rank);
    const parts = buildCell(rank);
    entry.cells.set(rank.rank, parts);
    entry.list.append(parts.cell);
  }
  fleet.replaceChildren(...[...cards.values()].map((entry) => entry.card));
  // One cell is reached by Tab, the others by arrows.
  const first = held && cards.get(held[0])?.cells.get(held[1])?.cell;
  (first ?? fleet.querySelector(".cell"))?.setAttribute("tabindex", "0");
  first?.focus({ preventScroll: true });
}

const page = (engine) => `#/engine/${encodeURIComponent(engine)}`;

function buildCard(rank) {
  // The cells lead there too: by keyboard an engine is reached once.
  const link = make("a", { href: page(rank.engine), title: rank.engine, tabindex: "-1" }, rank.engine);
  const list = make("div", { class: "cells" });
  const title = make("h2", {}, link, make("span", {}, rank.kind));
  const model = make("p", { class: "model", title: rank.model }, rank.model);
  const entry = { card: make("article", { class: "engine" }, title, model, list), list, cells: new Map() };
  cards.set(rank.engine, entry);
  return entry;
}

function buildCell(rank) {
  const parts = { mark: make("span", { class: "mark" }), state: make("span", { class: "state" }), pace: make("span", { class: "pace" }), life: make("span", { class: "life" }), tiers: {} };
  const blocks = make("span", { class: "blocks" });
  for (const tier of TIERS) {
    parts.tiers[tier] = make("span", { class: "tier", "data-tier": tier, hidden: "" });
    blocks.append(parts.tiers[tier]);
  }
  const names = { class: "cell", href: page(rank.engine), tabindex: "-1", "data-engine": rank.engine, "data-rank": rank.rank };
  parts.cell = make("a", names, make("span", { class: "top" }, parts.mark, make("b", {}, `rank ${rank.rank}`), parts.state), blocks, parts.pace, parts.life);
  return parts;
}

function drawCell(rank) {
  const parts = cards.get(rank.engine)?.cells.get(rank.rank);
  // The same object: nothing was told of it since.
  if (!parts || parts.drawn === rank) return;
  parts.drawn = rank;
  const state = standing(rank);
  const life = rank.restarts + 1;
  mark(parts.cell, "data-standing", state);
  mark(parts.cell, "data-epoch", String(rank.epoch));
  say(parts.mark, MARKS[state]);
  say(parts.state, state === "away" ? `${rank.trust}, away` : state);
  for (const tier of TIERS) {
    const held = rank.blocks[tier];
    parts.tiers[tier].hidden = held === undefined;
    if (held !== undefined) say(parts.tiers[tier], short(held));
  }
  say(parts.pace, `${rank.continuity} · ${short(rank.events_per_s)}/s · ${lag(rank)}`);
  say(parts.life, `epoch ${rank.epoch} · life ${life}`);
  const tiers = tierNames(rank.blocks);
  mark(
    parts.cell,
    "title",
    `${key(rank)}: ${rank.continuity}, ${rank.trust}\n${sentence(rank)}\nblocks: ${tiers}\n` +
      `${rank.events_per_s} events/s, lag ${lag(rank)}\nepoch ${rank.epoch}, life ${life} since it is followed`,
  );
  mark(
    parts.cell,
    "aria-label",
    `${rank.engine} rank ${rank.rank}, ${rank.continuity}, ${rank.trust}: ${sentence(rank)}; blocks ${tiers}, ` +
      `${rank.events_per_s} events a second, lag ${lag(rank)}, epoch ${rank.epoch}, life ${life}`,
  );
}

function hideOthers() {
  const shown = new Set();
  for (const rank of known.ranks.values()) {
    const text = [key(rank), rank.model, rank.kind, rank.trust, rank.continuity, rank.reason, rank.trouble].join(" ").toLowerCase();
    if (wanted.split(/\s+/).every((word) => text.includes(word))) shown.add(rank.engine);
  }
  for (const [engine, entry] of cards) entry.card.hidden = !shown.has(engine);
}

export function totals() {
  if (known.plane === null) return "";
  const states = { exact: 0, away: 0, other: 0 };
  let blocks = 0;
  let rate = 0;
  const engines = new Set();
  for (const rank of known.ranks.values()) {
    engines.add(rank.engine);
    const state = standing(rank);
    states[state in states ? state : "other"] += 1;
    blocks += total(rank.blocks);
    rate += rank.events_per_s;
  }
  const counted = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;
  const parts = [counted(engines.size, "engine"), counted(known.ranks.size, "rank"), `${states.exact} exact`];
  if (states.other) parts.push(`${states.other} less than exact`);
  if (states.away) parts.push(`${states.away} not followed`);
  parts.push(`${short(blocks)} blocks`, `${short(rate)} events/s`);
  return parts.join(" · ");
}
