// The last known state of the plane.

export const known = {
  plane: null, // {id, version}
  linked: false, // the plane is heard right now
  heard: 0, // when something was heard of it last, by its clock
  ranks: new Map(), // "engine/rank" -> the rank as the plane tells it
  queries: null, // tokens asked and found
  duplication: null, // blocks, and different blocks
  problems: [], // open problems, errors first
  past: null, // the last hour, as the server kept it
  links: [], // other planes that it follows
  remarks: [], // oldest first
  remarksAnew: false, // all that are kept come next
  skew: 0, // the plane's clock, less ours
  members: 0, // rises when other engines are there; 0 until any were told
};

export const key = (rank) => `${rank.engine}/${rank.rank}`;
export const now = () => Date.now() + known.skew;
