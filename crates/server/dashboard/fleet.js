// The fleet at a glance: a card for each engine, a cell for each rank.

import { known, key, now } from "./live.js";
import { LEGEND, MARKS, TIERS, make, mark, say, sentence, short, since, standing, total } from "./words.js";

const cards = new Map(); // engine -> {card, cells: Map(rank -> parts)}
let members = -1;
let wanted = "";

export function begin() {
  const legend = document.getElementById("legend");
  for (const [state, meaning] of LEGEND) {
    const sign = make("span", { class: "mark", "data-standing": state }, MARKS[state]);
    legend.append(make("li", { title: meaning }, sign, ` ${state}`));
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
  empty.hidden = known.ranks.size > 0;
  say(empty, "No engine yet. Add one: kvplane engines add NAME --engine vllm=tcp://HOST:5557,model=NAME");
}

function build() {
  const fleet = document.getElementById("fleet");
  cards.clear();
  for (const rank of known.ranks.values()) {
    let entry = cards.get(rank.engine);
    if (!entry) {
      const link = make("a", { href: `#/engine/${encodeURIComponent(rank.engine)}`, title: rank.engine }, rank.engine);
      const cells = make("div", { class: "cells" });
      const title = make("h2", {}, link, make("span", {}, rank.kind));
      const card = make("article", { class: "engine" }, title, make("p", { class: "model", title: rank.model }, rank.model), cells);
      entry = { card, list: cells, cells: new Map() };
      cards.set(rank.engine, entry);
    }
    const parts = { mark: make("span", { class: "mark" }), blocks: make("b"), rate: make("span", { class: "rate" }) };
    parts.cell = make("div", { class: "cell", "data-rank": rank.rank }, parts.mark, ` ${rank.rank} `, parts.blocks, parts.rate);
    entry.cells.set(rank.rank, parts);
    entry.list.append(parts.cell);
  }
  fleet.replaceChildren(...[...cards.values()].map((entry) => entry.card));
}

function drawCell(rank) {
  const parts = cards.get(rank.engine)?.cells.get(rank.rank);
  if (!parts) return;
  const state = standing(rank);
  mark(parts.cell, "data-standing", state);
  mark(parts.cell, "data-epoch", String(rank.epoch));
  say(parts.mark, MARKS[state]);
  say(parts.blocks, short(total(rank.blocks)));
  say(parts.rate, state === "away" ? rank.continuity : `${short(rank.events_per_s)}/s`);
  const tiers = TIERS.filter((tier) => rank.blocks[tier]).map((tier) => `${tier} ${rank.blocks[tier]}`);
  const quiet = rank.last_event_ms === null ? "nothing heard yet" : `last event ${since(rank.last_event_ms, now())} ago`;
  mark(
    parts.cell,
    "title",
    `rank ${rank.rank}: ${rank.continuity}, ${rank.trust}\n${sentence(rank)}\nblocks: ${tiers.join(", ") || "none"}\n${quiet}, epoch ${rank.epoch}`,
  );
  mark(parts.cell, "aria-label", `rank ${rank.rank}, ${state}, ${total(rank.blocks)} blocks, ${rank.events_per_s} events a second`);
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
  const parts = [`${engines.size} engines`, `${known.ranks.size} ranks`, `${states.exact} exact`];
  if (states.other) parts.push(`${states.other} less than exact`);
  if (states.away) parts.push(`${states.away} not followed`);
  parts.push(`${short(blocks)} blocks`, `${short(rate)} events/s`);
  return parts.join(" · ");
}
