// One engine: its ranks, with plots that move.

import { look, recall, samples } from "./history.js";
import { known, now } from "./known.js";
import { plot, sizeOf } from "./plot.js";
import { MARKS, TIERS, bytes, counted, lag, linkWords, make, mark, rate, remedy, say, sentence, short, since, standing, tierNames } from "./words.js";

const SPAN = 3_600_000; // across a plot, once so much is known
const LEAST_SPAN = 20_000;
let built = ""; // which engine and ranks the page shows
const parts = new Map(); // rank -> what changes on its card
let seen = new IntersectionObserver(() => {}); // which cards are in sight, or nearly

/** `changed` runs when other cards come into sight. */
export function begin(changed) {
  seen = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) target.toggleAttribute("data-seen", isIntersecting);
      changed();
    },
    { rootMargin: "200px" },
  );
}

export function draw(engine) {
  look(engine);
  const ranks = [...known.ranks.values()].filter((rank) => rank.engine === engine);
  const wanted = `${engine} ${known.members}`;
  if (built !== wanted) {
    built = wanted;
    build(engine, ranks);
    if (ranks.length) recall(engine);
  }
  const inSight = ranks.filter((rank) => parts.get(rank.rank)?.card.hasAttribute("data-seen"));
  // All at once: what is written between two questions would be laid out for each.
  const colours = getComputedStyle(document.documentElement);
  const colour = Object.fromEntries(["accent", ...TIERS].map((name) => [name, colours.getPropertyValue(`--${name}`).trim()]));
  const sizes = inSight.map((rank) => [parts.get(rank.rank).rate, parts.get(rank.rank).blocks].map(sizeOf));
  for (const rank of ranks) drawRank(rank, inSight.includes(rank));
  inSight.forEach((rank, at) => drawPlots(rank, parts.get(rank.rank), sizes[at], colour));
}

function build(engine, ranks) {
  parts.clear();
  say(document.getElementById("engine-name"), engine);
  say(document.getElementById("engine-facts"), known.members === 0 ? "" : facts(engine, ranks));
  seen.disconnect();
  document.getElementById("engine-ranks").replaceChildren(...ranks.map(buildRank));
  for (const { card } of parts.values()) seen.observe(card);
}

function facts(engine, ranks) {
  const link = known.links.find((link) => link.engine === engine);
  if (link) return `Another kvplane, ${linkWords(link)}.`;
  if (!ranks.length) return "No such engine.";
  const [{ kind, model, found }] = ranks;
  return `${kind}, ${model ? `model ${model}` : "no model"}, ${counted(ranks.length, "rank")}${found ? `. Found as ${found}` : ""}`;
}

function buildRank(rank) {
  const part = {
    mark: make("span", { class: "mark" }),
    state: make("span", {}),
    why: make("p", { class: "why" }),
    remedy: make("p", { class: "why", "data-remedy": "" }),
    facts: make("dl", {}),
    rate: make("canvas", { role: "img" }),
    rateNote: make("span"),
    blocks: make("canvas", { role: "img" }),
    blocksNote: make("span"),
    from: [make("span"), make("span")],
    values: {},
  };
  for (const name of ["epoch", "sequence", "last event", "lag", "blocks", "restarts", "gaps", "replay window", "state"]) {
    part.values[name] = make("dd");
    part.facts.append(make("dt", {}, name), part.values[name]);
  }
  const figure = (title, note, canvas, from) => {
    const axis = make("p", { class: "axis", "aria-hidden": "true" }, from, make("span", {}, "now"));
    return make("figure", {}, make("figcaption", {}, make("span", {}, title), note), canvas, axis);
  };
  part.card = make(
    "article",
    { class: "rank", "data-rank": rank.rank },
    make("h2", {}, part.mark, `rank ${rank.rank}`, part.state),
    part.why,
    part.remedy,
    part.facts,
    figure("events a second", part.rateNote, part.rate, part.from[0]),
    figure("blocks by tier", part.blocksNote, part.blocks, part.from[1]),
  );
  parts.set(rank.rank, part);
  return part.card;
}

function drawRank(rank, inSight) {
  const part = parts.get(rank.rank);
  // The same object: nothing was told of it since, and nobody sees how long that is.
  if (!part || (part.drawn === rank && !inSight)) return;
  part.drawn = rank;
  const state = standing(rank);
  mark(part.card, "data-standing", state);
  say(part.mark, MARKS[state]);
  say(part.state, `${rank.continuity}, ${rank.trust}`);
  say(part.why, sentence(rank));
  say(part.remedy, remedy(rank));
  part.remedy.hidden = !part.remedy.textContent;
  const values = {
    epoch: `${rank.epoch} (epoch ${rank.life} since kvplane started)`,
    sequence: rank.sequence === null ? "none yet" : String(rank.sequence),
    "last event": rank.last_event_ms === null ? "unknown" : `${since(rank.last_event_ms, now())} ago`,
    lag: lag(rank),
    blocks: `${tierNames(rank.blocks)}${rank.block_size ? ` (of ${rank.block_size} tokens)` : ""}`,
    restarts: String(rank.restarts),
    gaps: gaps(rank),
    "replay window": `${rank.window_batches.toLocaleString()} batches`,
    state: bytes(rank.state_bytes),
  };
  for (const [name, value] of Object.entries(values)) say(part.values[name], value);
}

/** Gaps are repaired when none is open: a stream that is not followed may have one. */
function gaps(rank) {
  if (!rank.gaps && !rank.gaps_unfilled) return "0";
  const parts = [String(rank.gaps)];
  if (rank.gaps_unfilled) parts.push(`${rank.gaps_unfilled} not repaired`);
  else if (rank.continuity === "live") parts.push("all repaired");
  if (rank.continuity === "recovering") parts.push("being repaired");
  return parts.join(", ");
}

function drawPlots(rank, part, [rateSize, blocksSize], colour) {
  const at = now();
  const all = samples(rank);
  const span = Math.min(SPAN, Math.max(LEAST_SPAN, at - (all[0]?.at ?? at)));
  for (const from of part.from) say(from, `${since(at - span, at)} ago`);
  // From one before the left edge on, and up to now while the plane is heard: what was told last is so still.
  const first = Math.max(0, all.findIndex((sample) => sample.at > at - span) - 1);
  const last = known.linked ? all.slice(-1).map((sample) => ({ ...sample, at })) : [];
  const drawn = [...all.slice(first), ...last];
  const times = drawn.map((sample) => sample.at);
  const most = plot(part.rate, rateSize, times, [{ colour: colour.accent, values: drawn.map((sample) => sample.rate) }], at, span);
  say(part.rateNote, `${rate(rank)} now, at most ${short(most)}`);
  mark(part.rate, "aria-label", `${rate(rank)} events a second`);
  const held = (blocks, tier) => (blocks ? (blocks[tier] ?? 0) : null);
  const series = TIERS.map((tier) => ({ colour: colour[tier], values: drawn.map(({ blocks }) => held(blocks, tier)) }));
  plot(part.blocks, blocksSize, times, series, at, span);
  say(part.blocksNote, tierNames(rank.blocks));
  mark(part.blocks, "aria-label", `blocks: ${tierNames(rank.blocks)}`);
}
