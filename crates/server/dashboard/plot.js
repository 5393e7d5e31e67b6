// A line or a stack over the last minutes, on a canvas.

/** How large a canvas is on the page. To be asked of all before anything is drawn: asking lays the page out. */
export const sizeOf = (canvas) => ({ width: canvas.clientWidth, height: canvas.clientHeight });

/**
 * Draws series [{colour, values}] stacked over each other, the values at the times `times`, from `now - span` to `now`. Where a value
 * is null nothing is known, and nothing is drawn. Returns the largest sum.
 */
export function plot(canvas, { width, height }, times, series, now, span) {
  const scale = window.devicePixelRatio || 1;
  if (!width || !height) return 0;
  if (canvas.width !== width * scale || canvas.height !== height * scale) {
    canvas.width = width * scale;
    canvas.height = height * scale;
  }
  const draw = canvas.getContext("2d");
  draw.setTransform(scale, 0, 0, scale, 0, 0);
  draw.clearRect(0, 0, width, height);
  const sums = times.map((_, at) => series.reduce((sum, { values }) => sum + (values[at] ?? 0), 0));
  const most = Math.max(1, ...sums);
  const x = (at) => width - ((now - times[at]) / span) * width;
  const y = (value) => height - 1 - (value / most) * (height - 6);
  const below = times.map(() => 0);
  for (const { colour, values } of series) {
    if (!values.some((value) => value > 0)) continue;
    draw.fillStyle = colour;
    draw.strokeStyle = colour;
    draw.lineWidth = 1.5;
    for (const run of runs(values)) {
      draw.beginPath();
      for (const at of run) draw.lineTo(x(at), y(below[at] + values[at]));
      draw.stroke();
      for (const at of run.toReversed()) draw.lineTo(x(at), y(below[at]));
      draw.closePath();
      draw.globalAlpha = 0.25;
      draw.fill();
      draw.globalAlpha = 1;
    }
    values.forEach((value, at) => (below[at] += value ?? 0));
  }
  return most;
}

/** The stretches in which every value is known. */
function runs(values) {
  const found = [[]];
  values.forEach((value, at) => {
    if (value !== null) found.at(-1).push(at);
    else found.push([]);
  });
  return found.filter((run) => run.length);
}
