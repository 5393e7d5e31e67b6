// The fleet at a glance: a card for each engine, a cell for each rank.

import { key, known } from "./known.js";
import { arrange } from "./order.js";
import { SHOWS, welcome } from "./shows.js";
import { LEGEND, MARKS, TIERS, lag, linkWords, make, mark, middle, modelOf, rate, say, sentence, severity, short, standing, tierNames } from "./words.js";

const cards = new Map(); // engine -> {card, cells: Map(rank -> parts)}
let members = -1;
let wanted = "";
let show = "";

/** Which ranks a link asks for: sick, exact, less, away, or all. */
export function only(which) {
  show = which in SHOWS ? which : "";
}

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
  arrange(document.getElementById("fleet"), cards, document.getElementById("sort").value);
  hideOthers();
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
  for (const link of known.links) {
    const { card, list } = buildCard({ ...link, model: "another kvplane" });
    card.dataset.standing = link.connected ? "exact" : "away";
    list.append(make("p", { class: "why" }, make("span", { class: "mark" }, link.connected ? MARKS.exact : MARKS.away), ` ${linkWords(link)}`));
  }
  fleet.replaceChildren(...[...cards.values()].map((entry) => entry.card));
  const first = held && cards.get(held[0])?.cells.get(held[1])?.cell;
  first?.setAttribute("tabindex", "0");
  first?.focus({ preventScroll: true });
}

const page = (engine) => `#/engine/${encodeURIComponent(engine)}`;

function buildCard(rank) {
  // The cells lead there too: by keyboard an engine is reached once.
  const link = make("a", { class: "middle", href: page(rank.engine), title: rank.engine, tabindex: "-1" }, ...middle(rank.engine));
  const list = make("div", { class: "cells" });
  const title = make("h2", {}, link, make("span", {}, rank.kind));
  const model = make("p", { class: "model middle", title: rank.model }, ...middle(modelOf(rank)));
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
  mark(parts.cell, "data-standing", state);
  mark(parts.cell, "data-epoch", String(rank.epoch));
  say(parts.mark, MARKS[state]);
  mark(parts.cell, "data-trouble", rank.trouble ?? "");
  if (rank.trouble) say(parts.state, `${rank.trust}, ${rank.trouble.replaceAll("_", " ")}`);
  else say(parts.state, state === "away" ? `${rank.trust}, away` : state);
  for (const tier of TIERS) {
    const held = rank.blocks[tier];
    parts.tiers[tier].hidden = held === undefined;
    if (held !== undefined) say(parts.tiers[tier], short(held));
  }
  say(parts.pace, `${rank.continuity} · ${rate(rank)}/s · lag ${lag(rank)}`);
  say(parts.life, `epoch ${rank.epoch} · life ${rank.life}`);
  const tiers = tierNames(rank.blocks);
  mark(
    parts.cell,
    "title",
    `${key(rank)}: ${rank.continuity}, ${rank.trust}\n${sentence(rank)}\nblocks: ${tiers}\n` +
      `${rate(rank)} events/s, lag ${lag(rank)}\nepoch ${rank.epoch}, number ${rank.life} since kvplane started`,
  );
  mark(
    parts.cell,
    "aria-label",
    `${rank.engine} rank ${rank.rank}, ${rank.continuity}, ${rank.trust}: ${sentence(rank)}; blocks ${tiers}, ` +
      `${rate(rank)} events a second, lag ${lag(rank)}, epoch ${rank.epoch}, life ${rank.life}`,
  );
}

/** Shows the engines that are looked for. One cell of those is reached by Tab. */
function hideOthers() {
  const shown = new Set();
  const words = wanted.split(/\s+/);
  const fits = show ? SHOWS[show][1] : () => true;
  const text = (one) => [one.rank === undefined ? one.engine : key(one), one.model, one.kind, one.trust, one.continuity, one.reason, one.trouble].join(" ");
  for (const one of [...known.ranks.values(), ...known.links]) {
    if (show && (one.rank === undefined ? one.connected || show !== "sick" : !fits(one))) continue;
    if (!wanted || words.every((word) => text(one).toLowerCase().includes(word))) shown.add(one.engine);
  }
  for (const [engine, entry] of cards) entry.card.hidden = !shown.has(engine);
  const fleet = document.getElementById("fleet");
  const reached = fleet.querySelector('.cell[tabindex="0"]');
  if (!reached || reached.closest(".engine").hidden) {
    reached?.setAttribute("tabindex", "-1");
    fleet.querySelector(".engine:not([hidden]) .cell")?.setAttribute("tabindex", "0");
  }
  const chip = document.getElementById("show");
  chip.hidden = !show;
  if (show) say(chip, `${SHOWS[show][0]} ✕`);
  const empty = document.getElementById("fleet-empty");
  empty.hidden = shown.size > 0 || known.members === 0;
  const state = cards.size ? "none" : "empty";
  if (!empty.hidden && empty.dataset.state !== state) empty.replaceChildren(...(cards.size ? ["No engine matches."] : welcome()));
  empty.dataset.state = empty.hidden ? "" : state;
}
