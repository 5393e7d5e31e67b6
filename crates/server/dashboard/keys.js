// The keyboard: letters for pages, arrows in the fleet.

/** Keys that work everywhere but where somebody writes. */
export function shortcuts(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    const action = actions[event.key];
    if (!action) return;
    action();
    event.preventDefault();
  });
}

/** Arrows move among the cells of the fleet, of which one is reached by Tab. */
export function arrows(fleet) {
  const take = (cell) => {
    fleet.querySelector('.cell[tabindex="0"]')?.setAttribute("tabindex", "-1");
    cell.setAttribute("tabindex", "0");
  };
  fleet.addEventListener("focusin", (event) => {
    const cell = event.target.closest(".cell");
    if (cell) take(cell);
  });
  fleet.addEventListener("keydown", (event) => {
    const cell = event.target.closest(".cell");
    const cells = [...fleet.querySelectorAll(".engine:not([hidden]) .cell")];
    const to = cell && next(cells, cell, event.key);
    if (!to) return;
    to.focus();
    event.preventDefault();
  });
}

function next(cells, cell, pressed) {
  const at = cells.indexOf(cell);
  if (pressed === "ArrowRight") return cells[at + 1];
  if (pressed === "ArrowLeft") return cells[at - 1];
  if (pressed === "Home") return cells[0];
  if (pressed === "End") return cells.at(-1);
  if (pressed === "ArrowDown") return nearest(cells, cell, 1);
  if (pressed === "ArrowUp") return nearest(cells, cell, -1);
  return undefined;
}

/** The cell below (1) or above (-1): of the nearest row the one whose left edge is nearest. */
function nearest(cells, cell, way) {
  const from = cell.getBoundingClientRect();
  const places = cells.map((other) => ({ other, at: other.getBoundingClientRect() }));
  const beyond = places.filter(({ at }) => (at.top - from.top) * way > from.height / 2);
  const rows = beyond.map(({ at }) => at.top * way);
  const row = Math.min(...rows);
  const inRow = beyond.filter(({ at }) => at.top * way - row < from.height / 2);
  inRow.sort((one, two) => Math.abs(one.at.left - from.left) - Math.abs(two.at.left - from.left));
  return inRow[0]?.other;
}
