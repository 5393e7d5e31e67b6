// What happened, as far as it is kept: as the plane keeps it.

import { known } from "./known.js";

const KEPT = 1024;
const KEPT_OF_ONE = 64; // of one rank, when there is no more room
const OLD = (KEPT * 3) / 4; // of these, what is routine goes first

const routine = (remark) => ["continuity", "trust", "source"].includes(remark.topic) && remark.mood !== "bad";
const whose = (remark) => `${remark.engine}/${remark.rank}`;

export function takeRemarks(remarks) {
  if (known.remarksAnew) known.remarks = [];
  known.remarksAnew = false;
  for (const remark of remarks) {
    // What happens again moves to the end under a new number.
    if (remark.times > 1) {
      const same = (other) => whose(other) === whose(remark) && other.words === remark.words && other.times < remark.times;
      const at = known.remarks.findLastIndex(same);
      if (at >= 0) known.remarks.splice(at, 1);
    }
    known.remarks.push(remark);
  }
  while (known.remarks.length > KEPT) known.remarks.splice(firstToGo(known.remarks), 1);
}

/** The oldest routine, or else the oldest of a rank that has more than its part, or else the oldest. */
function firstToGo(remarks) {
  const at = remarks.slice(0, OLD).findIndex(routine);
  if (at >= 0) return at;
  const told = new Map();
  for (const remark of remarks) told.set(whose(remark), (told.get(whose(remark)) ?? 0) + 1);
  return Math.max(0, remarks.findIndex((remark) => told.get(whose(remark)) > KEPT_OF_ONE));
}
