// The fleet at a glance: a card for each engine, a cell for each rank.

import { buildCell, drawCell, page } from "./cells.js";
import { key, known } from "./known.js";
import { arrange } from "./order.js";
import { SHOWS, welcome } from "./shows.js";
import { LEGEND, MARKS, TIERS, linkWords, make, middle, modelOf, say } from "./words.js";

const cards = new Map(); // engine -> {card, list, cells: Map(rank -> parts), about}
const seen = new Set(); // cards in sight, or nearly
let sight; // what watches them
let members = -1;
let wanted = "";
let show = "";

/** Which ranks a link asks for: sick, exact, less, away, or all. */
export function only(which) {
  show = which in SHOWS ? which : "";
}

/** `changed` runs when other cards come into sight. */
export function begin(changed) {
  sight = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) seen[isIntersecting ? "add" : "delete"](target);
      changed();
    },
    { rootMargin: "200px" },
  );
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
  for (const rank of known.ranks.values()) {
    const entry = cards.get(rank.engine);
    const parts = entry?.cells.get(rank.rank);
    if (parts) drawCell(parts, rank, seen.has(entry.card));
  }
  arrange(document.getElementById("fleet"), cards, document.getElementById("sort").value);
  hideOthers();
}

/** Makes the cards of engines that came or changed, and takes away those of the others. */
function build() {
  const fleet = document.getElementById("fleet");
  const focused = document.activeElement?.closest("#fleet .cell");
  const held = focused && [focused.dataset.engine, Number(focused.dataset.rank)];
  const there = new Map(); // engine -> what its card is made from, and what makes it
  for (const link of known.links) there.set(link.engine, { about: JSON.stringify(link), fresh: () => linkCard(link) });
  for (const [engine, ranks] of byEngine()) {
    const about = JSON.stringify([ranks[0].kind, ranks[0].model, ranks.map(({ rank }) => rank)]);
    there.set(engine, { about, fresh: () => engineCard(ranks) });
  }
  for (const [engine, { about, card }] of cards) {
    if (there.get(engine)?.about === about) continue;
    sight.unobserve(card);
    seen.delete(card);
    card.remove();
    cards.delete(engine);
  }
  for (const [engine, { about, fresh }] of there) {
    if (cards.has(engine)) continue;
    const entry = { ...fresh(), about };
    cards.set(engine, entry);
    fleet.append(entry.card);
    sight.observe(entry.card);
  }
  if (!held || focused.isConnected) return;
  const first = cards.get(held[0])?.cells.get(held[1])?.cell;
  first?.setAttribute("tabindex", "0");
  first?.focus({ preventScroll: true });
}

function byEngine() {
  const engines = new Map();
  for (const rank of known.ranks.values()) {
    if (!engines.has(rank.engine)) engines.set(rank.engine, []);
    engines.get(rank.engine).push(rank);
  }
  return engines;
}

function emptyCard({ engine, kind }, model) {
  // The cells lead there too: by keyboard an engine is reached once.
  const link = make("a", { class: "middle", href: page(engine), title: engine, tabindex: "-1" }, ...middle(engine));
  const list = make("div", { class: "cells" });
  const title = make("h2", {}, link, make("span", {}, kind));
  const below = make("p", { class: "model middle", title: model }, ...middle(model));
  return { card: make("article", { class: "engine" }, title, below, list), list, cells: new Map() };
}

function engineCard(ranks) {
  const entry = emptyCard(ranks[0], modelOf(ranks[0]));
  for (const rank of ranks) {
    const parts = buildCell(rank);
    entry.cells.set(rank.rank, parts);
    entry.list.append(parts.cell);
  }
  return entry;
}

function linkCard(link) {
  const entry = emptyCard(link, "another kvplane");
  entry.card.dataset.standing = link.connected ? "exact" : "away";
  entry.list.append(make("p", { class: "why" }, make("span", { class: "mark" }, link.connected ? MARKS.exact : MARKS.away), ` ${linkWords(link)}`));
  return entry;
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
