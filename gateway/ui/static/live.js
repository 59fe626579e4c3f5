// The session, calls of the gateway, and the stream of the pool.

export let session = { keyed: false, key: false, infer: false, manage: false, logs: false, batches: false, token: '', version: '' };

/** What the stream has told so far. skew is what the pool's clock is ahead of this one. */
export const world = { pool: null, models: [], history: null, notes: {}, batches: [], skew: 0 };

const listeners = new Set();
export const onChange = (f) => listeners.add(f);
const tell = (what) => { for (const f of listeners) f(what); };

/** Now on the pool's clock. */
export const now = () => Date.now() + world.skew;

function headers(more) {
  return session.token ? { ...more, 'x-reveille-token': session.token } : { ...more };
}

/** fetch with the session. */
export function call(method, path, body, signal) {
  const init = { method, headers: headers(body === undefined ? {} : { 'Content-Type': 'application/json' }), signal, credentials: 'same-origin', redirect: 'error' };
  if (body !== undefined) init.body = JSON.stringify(body);
  return fetch(path, init);
}

/** The gateway's own words for a refusal, in any of its dialects. */
export async function refusal(resp) {
  const text = await resp.text();
  try {
    const e = JSON.parse(text);
    return String(e.error?.message ?? e.error ?? e.message ?? text);
  } catch {
    return text || `status ${resp.status}`;
  }
}

/** Calls and returns the answer's JSON; an Error has the gateway's message and the status. */
export async function ask(method, path, body, signal) {
  const resp = await call(method, path, body, signal);
  if (!resp.ok) throw Object.assign(new Error(await refusal(resp)), { status: resp.status });
  return resp.json();
}

export async function readSession() {
  session = await ask('GET', '/ui/session');
  tell('session');
}

export async function login(key) {
  session = await ask('POST', '/ui/session', { key });
  tell('session');
  again();
}

export async function logout() {
  session = await ask('DELETE', '/ui/session');
  Object.assign(world, { pool: null, models: [], history: null, notes: {}, batches: [] });
  tell('session');
  again();
}

/** Reads the key's newest batches, as its programs do. */
export async function readBatches() {
  if (!session.batches) return;
  const { data } = await ask('GET', '/v1/batches?limit=10');
  world.batches = data;
  tell('batches');
}

/** Splits an event stream into blocks of lines. */
export async function* blocks(resp) {
  const reader = resp.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    rest += value ?? '';
    const parts = rest.split('\n\n');
    rest = done ? '' : parts.pop();
    for (const p of parts) if (p) yield p.split('\n');
    if (done) return;
  }
}

let stop = null;
let timer = 0;
let delay = 500;

export let status = { state: 'off', text: 'connecting' };

function report(state, text) {
  status = { state, text };
  tell('status');
}

async function follow() {
  const ctl = new AbortController();
  stop = ctl;
  try {
    const resp = await call('GET', '/ui/stream', undefined, ctl.signal);
    if (resp.status === 403 && session.key) { // limited to some models: it may run these
      report('off', 'not for this key');
      const { data } = await ask('GET', '/v1/models', undefined, ctl.signal);
      world.models = data.map((m) => ({ id: m.id, type: m.type, state: m.status?.value ?? 'unloaded' }));
      tell('models');
      tell('limited');
      return;
    }
    if (resp.status === 401 || resp.status === 403) {
      report('off', 'needs a key');
      tell('denied');
      return;
    }
    if (!resp.ok) throw new Error(await refusal(resp));
    for await (const lines of blocks(resp)) {
      delay = 500;
      if (!lines[0].startsWith('event: ')) continue;
      const { at, view } = JSON.parse(lines[1].slice('data: '.length));
      world.skew = at - Date.now();
      world[lines[0].slice('event: '.length)] = view;
      if (status.state !== 'on') report('on', 'live');
      tell(lines[0].slice('event: '.length));
    }
    if (!ctl.signal.aborted) readSession().catch(() => {}); // the session may be over
    throw new Error('connection lost');
  } catch (err) {
    if (ctl.signal.aborted) return;
    report('off', err.message.length < 60 ? `${err.message}, trying again` : 'trying again');
    timer = setTimeout(follow, delay);
    delay = Math.min(delay * 2, 15000);
  }
}

/** Begins the stream anew. */
export function again() {
  clearTimeout(timer);
  stop?.abort();
  follow();
}

/** A page that nobody sees follows nothing. */
document.addEventListener('visibilitychange', () => {
  if (document.visibilityState === 'visible') {
    again();
  } else {
    clearTimeout(timer);
    stop?.abort();
    report('off', 'paused');
  }
});
