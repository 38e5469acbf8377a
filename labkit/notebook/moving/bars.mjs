// Bars over time, a row for each rank, uncovered up to a moment that moves from step to step.
import { forAnywidget, INK, LINE, PAGE } from "./player.mjs";

const [LEFT, RIGHT, TOP, MAIN, THIN, ROW] = [64, 104, 8, 28, 16, 56];

export function bars({ rows, end, unit, heading, steps }) {
  const width = 900 - LEFT - RIGHT;
  const scale = width / end;
  const tall = rows.some((row) => row.bars.some((bar) => bar.lane)) ? ROW : MAIN + 10;
  const y = (row, lane) => TOP + 22 + row * tall + (lane ? MAIN + 3 : 0);
  const bottom = y(rows.length, 0);

  function shapes(step) {
    const { at, notes } = steps[step];
    const drawn = [{ id: "heading", x: 900 - RIGHT + 8, y: 14, text: heading, faint: true }];
    rows.forEach(({ name, bars: own }, row) => {
      drawn.push({ id: `name-${row}`, x: 0, y: y(row, 0) + MAIN / 2, text: name });
      drawn.push({ id: `row-${row}`, x: LEFT, y: y(row, 0), w: width, h: MAIN, fill: PAGE, stroke: LINE });
      own.forEach((bar, number) => {
        const long = (bar.end - bar.start) * scale;
        const high = bar.lane ? THIN / bar.of : MAIN; // operations in flight together share the lane
        drawn.push({ id: `bar-${row}-${number}`, x: LEFT + bar.start * scale,
          y: y(row, bar.lane) + (bar.lane ? bar.place * high : 0), w: Math.max(long, 1),
          h: bar.lane ? 0.85 * high : high, fill: bar.colour, stroke: bar.lane ? undefined : PAGE,
          text: bar.text && long > 8 * bar.text.length && !bar.lane ? bar.text : undefined });
      });
    });
    const now = LEFT + at * scale;
    drawn.push({ id: "cover", x: now, y: TOP + 18, w: width, h: bottom - TOP - 18, fill: PAGE, over: true });
    drawn.push({ id: "right", x: 900 - RIGHT, y: 0, w: RIGHT, h: bottom, fill: PAGE, over: true });
    drawn.push({ id: "now", x: now, y: TOP + 14, w: 2, h: bottom - TOP - 10, fill: INK, over: true });
    drawn.push({ id: "axis", x: LEFT, y: bottom + 14, text: `0 to ${Number(end.toPrecision(3))} ${unit}`, faint: true });
    notes.forEach((note, row) => drawn.push({ id: `note-${row}`, x: 900 - RIGHT + 8,
      y: y(row, 0) + MAIN / 2, text: note, over: true }));
    drawn.push({ id: "heading-over", x: 900 - RIGHT + 8, y: 14, text: heading, faint: true, over: true });
    return drawn;
  }
  return { width: 900, height: bottom + 28, shapes };
}

export default forAnywidget(bars);
