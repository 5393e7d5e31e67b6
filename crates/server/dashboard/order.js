// The order of the cards: trouble first, unless another one is chosen. Cards move only when the order changes.

import { known } from "./known.js";
import { severity } from "./words.js";

/** What a card is sorted by, largest first. */
const BY = {
  trouble: (ranks) => Math.max(0, ...ranks.map(severity)),
  name: () => 0,
  blocks: (ranks) => ranks.reduce((sum, rank) => sum + rank.blocks.device, 0),
  rate: (ranks) => ranks.reduce((sum, rank) => sum + (rank.events_per_s ?? 0), 0),
};
const PAUSE = 3000; // figures change all the time: cards that are sorted by one stay for a while
// `localeCompare` with options makes a collator for every comparison: far too slow for hundreds of names, twice a second.
const NATURAL = new Intl.Collator(undefined, { numeric: true });
let arranged = { by: "", members: -1, at: 0 };
let named = { members: -1, order: new Map() };

/** Where each engine stands among all, by name. */
function byName(cards) {
  if (named.members !== known.members) {
    const names = [...cards.keys()].sort(NATURAL.compare);
    named = { members: known.members, order: new Map(names.map((name, at) => [name, at])) };
  }
  return named.order;
}

export function arrange(fleet, cards, by) {
  const figures = by === "blocks" || by === "rate";
  const same = arranged.by === by && arranged.members === known.members;
  if (same && figures && Date.now() - arranged.at < PAUSE) return;
  arranged = { by, members: known.members, at: Date.now() };
  const ranks = new Map();
  for (const rank of known.ranks.values()) {
    if (!ranks.has(rank.engine)) ranks.set(rank.engine, []);
    ranks.get(rank.engine).push(rank);
  }
  const lost = new Set(known.links.filter((link) => !link.connected).map((link) => link.engine));
  const weight = new Map([...cards.keys()].map((engine) => [engine, lost.has(engine) && by === "trouble" ? 2 : BY[by](ranks.get(engine) ?? [])]));
  const place = byName(cards);
  const order = [...cards.keys()].sort((one, two) => weight.get(two) - weight.get(one) || place.get(one) - place.get(two));
  let at = fleet.firstElementChild;
  for (const engine of order) {
    const { card } = cards.get(engine);
    if (card === at) at = at.nextElementSibling;
    else fleet.insertBefore(card, at);
  }
}
