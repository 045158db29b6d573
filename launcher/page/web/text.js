// Numbers as people read them, and small helpers for elements.

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Changes the text only if it is another, so that nothing is drawn again in vain.
function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

function duration(ms) {
  if (!(ms >= 0)) return '';
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  if (parts[0] === 0) return `${parts[1]} min ${parts[2]} s`;
  return `${parts[0]} h ${parts[1]} min`;
}

// For the ticks of time axes.
function shortDuration(ms) {
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return seconds % 60 === 0 ? `${seconds / 60} min` : `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}`;
  const hours = seconds / 3600;
  return Number.isInteger(hours) ? `${hours} h` : `${hours.toFixed(1)} h`;
}

function number(value) {
  if (typeof value !== 'number' || !isFinite(value)) return '';
  if (value !== 0 && Math.abs(value) < 0.001) return value.toExponential(2);
  const digits = Math.abs(value) < 1 ? 4 : Math.abs(value) < 100 ? 2 : 0;
  return value.toLocaleString('en', {maximumFractionDigits: digits});
}

function size(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (bytes >= 1024 && unit + 1 < units.length) {
    bytes /= 1024;
    ++unit;
  }
  return `${bytes < 10 && unit > 0 ? bytes.toFixed(1) : Math.round(bytes)} ${units[unit]}`;
}

function count(n, noun) {
  return `${number(n)} ${noun}${n === 1 ? '' : 's'}`;
}

// The job's nodes, in their order.
function nodesOf(job) {
  return Object.values(job.nodes || {}).sort((a, b) => a.place - b.place);
}

// Members of an object whose names are numbers, in the order of the numbers.
function inOrder(object) {
  return Object.entries(object || {}).map(([key, value]) => [Number(key), value]).sort((a, b) => a[0] - b[0]);
}
