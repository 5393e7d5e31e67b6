// Numbers and states as people read them.

export const TIERS = ["device", "host", "disk", "remote", "unknown"];

/** What a rank's word is worth right now: its trust while it is followed, "away" while it is not. Nothing follows what failed. */
export function standing(rank) {
  return rank.continuity === "live" && rank.trouble !== "defect" ? rank.trust : "away";
}

/** Each state has a mark of its own, so that colour is not the only difference. */
export const MARKS = { exact: "✓", lower: "▾", unverified: "?", unsound: "✗", away: "…" };

export const LEGEND = [
  ["exact", "exact: in sync with the engine"],
  ["lower", "lower: no phantoms, some blocks may be missing"],
  ["unverified", "unverified: unknown data was skipped"],
  ["unsound", "unsound: may show blocks that are gone"],
  ["away", "away: not connected or recovering; not credited"],
];

export function short(number) {
  if (number < 10_000) return String(number);
  if (number < 1_000_000) return `${(number / 1000).toFixed(number < 100_000 ? 1 : 0)}k`;
  return `${(number / 1_000_000).toFixed(1)}M`;
}

export function bytes(number) {
  if (number < 1 << 20) return `${Math.round(number / 1024)} KiB`;
  return `${(number / (1 << 20)).toFixed(1)} MiB`;
}

export function since(fromMs, nowMs) {
  const seconds = Math.max(0, Math.round((nowMs - fromMs) / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

export function clock(unixMs) {
  return new Date(unixMs).toLocaleTimeString([], { hour12: false });
}

export const modelOf = (rank) => rank.model || "(no model)";

/** Events a second, as far as they were measured. */
export const rate = (rank) => (rank.events_per_s === null ? "–" : short(rank.events_per_s));

/** How long the last batch was on its way. */
export function lag(rank) {
  if (rank.lag_ms === null) return "unknown";
  return rank.lag_ms < 10_000 ? `${rank.lag_ms} ms` : since(0, rank.lag_ms);
}

/** Blocks by tier, in words. */
export function tierNames(blocks) {
  return TIERS.filter((tier) => blocks[tier] !== undefined).map((tier) => `${tier} ${blocks[tier].toLocaleString()}`).join(", ");
}

/** One sentence about a rank: what troubles its source, and what it is worth. */
export function sentence(rank) {
  if (!rank.trouble) return worth(rank);
  const quiet = rank.continuity === "connecting" || rank.trouble === "defect";
  return quiet ? rank.trouble_words : `${rank.trouble_words}; ${worth(rank)}`;
}

/** Reasons for which blocks that were cached before stay invisible while nothing stores them again. A flush ends them. */
const UNKNOWN_PAST = new Set(["history", "gap", "unproven", "undecodable", "unproven_flush"]);

/** What can be done about a rank that does not heal by itself soon; empty where nothing has to be. */
export function remedy(rank) {
  if (rank.continuity !== "live" || !UNKNOWN_PAST.has(rank.reason)) return "";
  return `Prefixes that stay in use may stay invisible. To start from a known state: kvplane flush --engine ${rank.engine} --nudge. It empties the engine's cache.`;
}

function worth(rank) {
  if (rank.continuity === "connecting") return "connecting";
  if (rank.continuity === "down") return "unreachable: its state is kept for its return and not credited";
  if (rank.continuity === "recovering") return "recovering: not credited until the engine answers";
  if (rank.trust === "exact") return "in sync with the engine";
  return rank.words ?? rank.reason ?? "";
}

/** How the way to another plane is. */
export function linkWords(link) {
  return link.connected ? "connected: its engines are listed here" : `not connected: ${link.trouble_words ?? "not reached yet"}`;
}

/** How much attention a rank needs: 2 is broken, 1 is degraded, 0 is none. A flush that somebody ordered is no trouble. */
export function severity(rank) {
  const state = standing(rank);
  if (state === "exact" && !rank.trouble) return 0;
  if (rank.continuity === "live" && rank.reason === "flushing") return 0;
  return state === "away" || state === "unsound" || rank.trouble ? 2 : 1;
}

/** A name in two parts: where there is no room the middle is left out, and the end stays. */
export function middle(name, tail = 8) {
  const at = Math.max(0, name.length - tail);
  return [make("span", { class: "head" }, name.slice(0, at)), make("span", { class: "tail" }, name.slice(at))];
}

/** A share in percent. */
export const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "–");

/** A count with its noun. */
export const counted = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;

/** Makes an element: attributes by name, children as nodes or text. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Sets text only where it differs: an unchanged page costs nothing. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function mark(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}
