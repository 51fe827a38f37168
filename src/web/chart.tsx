// A chart of values over time, drawn by uPlot in the colours of the page.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { octets } from "./format.ts";
import "uplot/dist/uPlot.min.css";

export interface Line {
  name: string;
  colour: string; // a variable of style.css
  values: (number | null)[];
}

interface Props {
  title: string;
  times: number[]; // seconds since the epoch
  lines: Line[];
  show: (value: number | undefined | null) => string;
}

const HEIGHT = 170;
// Steps of an axis of octets are powers of two.
const BINARY = Array.from({ length: 50 }, (_, power) => 2 ** power);
const colourOf = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function Chart({ title, times, lines, show }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const data = [times, ...lines.map((line) => line.values)] as uPlot.AlignedData;
  useEffect(() => {
    const element = place.current!;
    const draw = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(element, lines, show), data, element);
    };
    draw();
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", draw);
    document.addEventListener("theme", draw);
    return () => {
      observer.disconnect();
      scheme.removeEventListener("change", draw);
      document.removeEventListener("theme", draw);
      plot.current?.destroy();
      plot.current = null;
    };
  }, []);
  useEffect(() => plot.current?.setData(data), [times, ...lines.map((line) => line.values)]);
  const last = (line: Line) => line.values.findLast((each) => each !== null);
  const words = lines.map((line) => `${line.name} ${show(last(line))}`).join(", ");
  return (
    <section class="card chart">
      <h2>{title}</h2>
      <div ref={place} class="plot" role="img" aria-label={`${title}: ${words}`} />
      <ul class="legend">
        {lines.map((line) => (
          <li key={line.name}>
            <i class={`swatch ${line.colour.slice(2)}`} aria-hidden="true" />
            {line.name} <b>{show(last(line))}</b>
          </li>
        ))}
      </ul>
    </section>
  );
}

const clock = (seconds: number, step: number) => new Date(seconds * 1000).toLocaleTimeString([], {
  hour: "2-digit", minute: "2-digit", second: step < 60 ? "2-digit" : undefined, hour12: false,
});

function options(element: HTMLElement, lines: Line[], show: Props["show"]): uPlot.Options {
  const axis = { stroke: colourOf("--quiet"), grid: { stroke: colourOf("--line"), width: 1 }, ticks: { show: false } };
  return {
    width: element.clientWidth || 300,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, points: { size: 6 } },
    scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    axes: [
      { ...axis, size: 30, space: 80, values: (_plot, splits, _at, _space, step) => splits.map((each) => clock(each, step)) },
      { ...axis, size: 72, incrs: show === octets ? BINARY : undefined,
        values: (_plot, splits) => splits.map((each) => show(each)) },
    ],
    series: [{}, ...lines.map((line) => ({
      label: line.name, stroke: colourOf(line.colour), width: 2, points: { show: false },
    }))],
  };
}
