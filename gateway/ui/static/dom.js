// Elements from data. Texts only ever become text nodes: nothing here parses HTML.

const SVG = 'http://www.w3.org/2000/svg';

function fill(el, attrs, children) {
  for (const [name, value] of Object.entries(attrs ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    el.setAttribute(name, value === true ? '' : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false || child === '') continue;
    el.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return el;
}

/** An element: h('p', {class: 'x'}, 'text', other). */
export const h = (tag, attrs, ...children) => fill(document.createElement(tag), attrs, children);

/** An SVG element. */
export const s = (tag, attrs, ...children) => fill(document.createElementNS(SVG, tag), attrs, children);

const keyOf = (node) => node.nodeType === 1 ? node.getAttribute('data-key') : null;
const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

/** Makes the children of old those of fresh, and keeps the elements that stay, with their focus and scroll. */
export function morph(old, fresh) {
  const kept = new Map();
  for (const child of old.childNodes) if (keyOf(child) !== null) kept.set(keyOf(child), child);
  let at = old.firstChild;
  for (const want of [...fresh.childNodes]) {
    const key = keyOf(want);
    let have = key === null ? at : kept.get(key);
    if (!have || !alike(have, want) || have.parentNode !== old) {
      old.insertBefore(want, at);
      continue;
    }
    if (have !== at) old.insertBefore(have, at);
    else at = at.nextSibling;
    update(have, want);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function update(have, want) {
  if (have.nodeType === 3) {
    if (have.data !== want.data) have.data = want.data;
    return;
  }
  for (const { name } of [...have.attributes]) if (!want.hasAttribute(name) && name !== 'open') have.removeAttribute(name);
  for (const { name, value } of want.attributes) if (have.getAttribute(name) !== value) have.setAttribute(name, value);
  morph(have, want);
}

/** Shows a view's elements in place of those that are there. */
export function show(root, ...children) {
  morph(root, fill(document.createElement('div'), {}, children));
}

export const byId = (id) => document.getElementById(id);

/** Bytes in words. */
export function bytes(n) {
  if (!n) return '0';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const i = Math.min(units.length - 1, Math.floor(Math.log2(n) / 10));
  const v = n / 2 ** (10 * i);
  return `${v >= 100 || i === 0 ? v.toFixed(0) : v.toFixed(1)} ${units[i]}`;
}

/** A duration in milliseconds in words. */
export function lasting(ms) {
  const sec = Math.max(0, Math.round(ms / 1000));
  if (sec < 60) return `${sec} s`;
  if (sec < 3600) return `${Math.floor(sec / 60)} min${sec < 600 && sec % 60 ? ` ${sec % 60} s` : ''}`;
  if (sec < 48 * 3600) return `${Math.floor(sec / 3600)} h ${Math.floor(sec % 3600 / 60)} min`;
  return `${Math.floor(sec / 86400)} days`;
}

export const plural = (n, one, many = one + 's') => `${n} ${n === 1 ? one : many}`;

export const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', hour12: false });

/** Tells of an outcome for a few seconds. instead is an earlier toast that it replaces; without an end a toast stays a minute. */
export function toast(text, bad = false, instead = null, ended = true) {
  instead?.remove();
  const el = h('p', { class: bad ? 'toast bad' : 'toast' }, text);
  byId('toasts').append(el);
  while (byId('toasts').children.length > 4) byId('toasts').firstChild.remove();
  setTimeout(() => el.remove(), !ended ? 60000 : bad ? 10000 : 5000);
  return el;
}
