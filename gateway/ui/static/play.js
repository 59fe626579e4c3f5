// The playground: chat, embeddings, rerank. It asks as any client does.
import { h, byId as inPage, lasting, toast } from './dom.js';
import { world, call, refusal, blocks, session } from './live.js';

const usable = { llm: 'Chat', embedding: 'Embeddings', reranking: 'Rerank' };
const state = { model: '', messages: [], picture: null, ctl: null };

/** An element of the page or of this view while another one is shown. */
const byId = (id) => inPage(id) ?? built?.map((el) => el.id === id ? el : el.querySelector(`#${id}`)).find(Boolean) ?? null;

const typeOf = (id) => world.models.find((m) => m.id === id)?.type ?? 'llm';

/** Fills the list of models, which the stream may bring late. */
export function playModels() {
  const list = byId('play-model');
  if (!list) return;
  const groups = Object.entries(usable).map(([type, label]) => {
    const of = world.models.filter((m) => m.type === type);
    return of.length && h('optgroup', { label }, of.map((m) => h('option', { value: m.id }, m.state === 'unloaded' ? `${m.id} (not loaded)` : m.id)));
  }).filter(Boolean);
  if (list.dataset.has !== JSON.stringify(world.models)) {
    list.dataset.has = JSON.stringify(world.models);
    list.replaceChildren(...groups);
  }
  if (world.models.some((m) => m.id === state.model)) list.value = state.model;
  if (state.model !== list.value) {
    state.model = list.value;
    mode();
  }
}

/** Shows the form of the model's type. */
function mode() {
  const type = typeOf(state.model);
  byId('play-form').replaceChildren(...({ embedding: embedForm, reranking: rankForm }[type] ?? chatForm)());
  byId('play-out').replaceChildren();
  state.messages = [];
  state.picture = null;
}

const field = (id, label, el) => h('div', { class: 'field' }, h('label', { for: id }, label), el);
const area = (id, rows, text) => Object.assign(h('textarea', { id, rows, spellcheck: 'false', required: true }), { value: text });
const buttons = (go) => h('div', { class: 'row' }, h('button', { type: 'submit', class: 'primary', id: 'play-go', title: 'Ctrl+Enter' }, go), h('button', { type: 'button', class: 'quiet', id: 'play-stop', hidden: true }, 'Stop'),
  h('button', { type: 'button', class: 'quiet', id: 'play-clear' }, 'Clear'), h('span', { class: 'grow' }),
  h('span', { class: 'pair' }, h('button', { type: 'button', class: 'quiet', id: 'play-curl' }, 'Copy as curl'), h('button', { type: 'button', class: 'quiet', id: 'play-python' }, 'Copy as Python')));

function chatForm() {
  const file = h('input', { id: 'play-picture', type: 'file', accept: 'image/png,image/jpeg,image/gif' });
  file.addEventListener('change', async () => { state.picture = file.files[0] ? await dataURL(file.files[0]) : null; });
  return [
    field('play-text', 'Message', area('play-text', 3, '')),
    h('div', { class: 'row fields' },
      field('play-picture', 'Picture', file),
      field('play-max', 'Max tokens', Object.assign(h('input', { id: 'play-max', type: 'number', min: '1', max: '100000' }), { value: '256' })),
      field('play-temp', 'Temperature', Object.assign(h('input', { id: 'play-temp', type: 'number', min: '0', max: '2', step: '0.1' }), { value: '0.7' }))),
    buttons('Send')];
}

const embedForm = () => [field('play-text', 'Texts, one per line', area('play-text', 6, 'a cat on a mat\na dog in a basket\nquarterly tax report')), buttons('Compare')];

const rankForm = () => [
  field('play-query', 'Query', Object.assign(h('input', { id: 'play-query', type: 'text' }), { value: 'pets' })),
  field('play-text', 'Documents, one per line', area('play-text', 6, 'a cat on a mat\na dog in a basket\nquarterly tax report')), buttons('Rank')];

const dataURL = (file) => new Promise((ok, no) => {
  const r = new FileReader();
  r.onload = () => ok(r.result);
  r.onerror = () => no(r.error);
  r.readAsDataURL(file);
});

const lines = () => byId('play-text').value.split('\n').map((l) => l.trim()).filter(Boolean);

/** The request that the form stands for: path and body. */
function request() {
  switch (typeOf(state.model)) {
    case 'embedding': return ['/v1/embeddings', { model: state.model, input: lines() }];
    case 'reranking': return ['/v1/rerank', { model: state.model, query: byId('play-query').value, documents: lines() }];
  }
  const text = byId('play-text').value;
  const content = state.picture ? [{ type: 'image_url', image_url: { url: state.picture } }, { type: 'text', text }] : text;
  return ['/v1/chat/completions', {
    model: state.model, messages: [...state.messages, { role: 'user', content }], max_tokens: Number(byId('play-max').value) || 256,
    temperature: Number(byId('play-temp').value), stream: true, stream_options: { include_usage: true },
  }];
}

function turn(who, picture) {
  const text = h('div', { class: 'text' });
  const stats = h('p', { class: 'stats muted' });
  byId('play-out').append(h('article', { class: `turn ${who}`, 'aria-label': who === 'user' ? 'You' : 'Model' }, h('h3', {}, who === 'user' ? 'You' : state.model), picture && h('img', { src: picture, alt: 'Your picture' }), text, stats));
  return { text, stats };
}

/** What the pool says of the model while it is not loaded. */
function stage() {
  const t = world.pool?.queue.find((q) => q.model === state.model && q.kind === 'load');
  return t ? `${t.state}${t.host ? ` on ${t.host}` : ''}: ${t.why}${t.eta ? `, about ${lasting(t.eta * 1000)} left` : ''}` : '';
}

async function chat(path, body) {
  const { text: mine } = turn('user', state.picture);
  mine.textContent = byId('play-text').value;
  const { text, stats } = turn('assistant');
  text.setAttribute('aria-live', 'polite');
  text.setAttribute('aria-busy', 'true'); // the answer is read out once it is whole
  const began = performance.now();
  let first = 0, out = '', thought = '', usage = null, timings = null, said = '';
  const wait = setInterval(() => { if (!first) stats.textContent = stage() || said || `waiting, ${lasting(performance.now() - began)}`; }, 300);
  try {
    const resp = await call('POST', path, body, state.ctl.signal);
    if (!resp.ok) throw new Error(await refusal(resp));
    for await (const block of blocks(resp)) {
      for (const line of block) {
        if (line.startsWith(': ')) said = line.slice(2);
        if (!line.startsWith('data: ') || line === 'data: [DONE]') continue;
        const event = JSON.parse(line.slice(6));
        if (event.error) throw new Error(event.error.message ?? 'the stream broke off');
        const delta = event.choices?.[0]?.delta ?? {};
        thought += delta.reasoning_content ?? '';
        out += delta.content ?? '';
        if (!first && (delta.content || delta.reasoning_content)) first = performance.now();
        usage = event.usage ?? usage;
        timings = event.timings ?? timings;
        text.textContent = thought ? `${thought}\n\n${out}` : out;
      }
    }
    state.messages = [...body.messages, { role: 'assistant', content: out }];
    byId('play-text').value = '';
    byId('play-picture').value = '';
    state.picture = null;
    stats.textContent = figures(resp.headers, began, first, usage, timings);
  } catch (err) {
    stats.textContent = err.name === 'AbortError' ? 'stopped' : err.message;
    stats.classList.toggle('error', err.name !== 'AbortError');
  } finally {
    clearInterval(wait);
    text.removeAttribute('aria-busy');
  }
}

function figures(headers, began, first, usage, timings) {
  const took = performance.now() - (first || began);
  const n = usage?.completion_tokens ?? timings?.predicted_n;
  const rate = timings?.predicted_per_second ?? (n > 1 && took > 0 ? 1000 * (n - 1) / took : 0);
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? timings?.cache_n;
  return [
    first && `first token after ${((first - began) / 1000).toFixed(2)} s`,
    n && `${n} tokens`, rate && `${rate.toFixed(1)} tokens/s`,
    usage?.prompt_tokens && `${usage.prompt_tokens} prompt tokens`, cached !== undefined && cached !== null && `${cached} cached`,
    ...told(headers),
  ].filter(Boolean).join(' · ');
}

/** What an answer's headers say of its way. */
const told = (headers) => [['x-media-cache', 'media cache'], ['x-cache-tokens', 'conversation'], ['x-queue-ms', 'queued', ' ms'], ['x-load-ms', 'loaded in', ' ms'], ['x-evicted', 'evicted'], ['x-runner', 'on']]
  .map(([name, label, unit = '']) => headers.get(name) && headers.get(name) !== '0' && `${label} ${headers.get(name)}${unit}`);

const cosine = (a, b) => {
  let ab = 0, aa = 0, bb = 0;
  for (let i = 0; i < a.length; i++) { ab += a[i] * b[i]; aa += a[i] ** 2; bb += b[i] ** 2; }
  return ab / Math.sqrt(aa * bb || 1);
};

/** Asks for an answer that comes whole; until then the model's stage is shown. Returns the answer and its figures. */
async function whole(path, body) {
  const began = performance.now();
  const stats = h('p', { class: 'stats muted' });
  byId('play-out').replaceChildren(stats);
  const wait = setInterval(() => { stats.textContent = stage() || `waiting, ${lasting(performance.now() - began)}`; }, 300);
  try {
    const resp = await call('POST', path, body, state.ctl.signal);
    if (!resp.ok) throw new Error(await refusal(resp));
    const answer = await resp.json();
    return [answer, [`${Math.round(performance.now() - began)} ms`, ...told(resp.headers)]];
  } finally {
    clearInterval(wait);
    stats.remove();
  }
}

async function embed(path, body) {
  const [answer, took] = await whole(path, body);
  const vectors = answer.data.map((d) => d.embedding);
  const cell = (v) => {
    const td = h('td', { class: 'num heat' }, v.toFixed(2));
    td.style.setProperty('--heat', Math.max(0, v).toFixed(2));
    return td;
  };
  byId('play-out').replaceChildren(
    h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Similarity of the texts' }, h('table', { class: 'matrix' },
      h('caption', {}, 'Cosine similarity'),
      h('thead', {}, h('tr', {}, h('td', {}), vectors.map((_, i) => h('th', { scope: 'col' }, i + 1)))),
      h('tbody', {}, vectors.map((a, i) => h('tr', {}, h('th', { scope: 'row' }, `${i + 1}  ${body.input[i]}`), vectors.map((b) => cell(cosine(a, b)))))))),
    h('p', { class: 'stats muted' }, [`${vectors.length} vectors of ${vectors[0]?.length ?? 0}`, `${answer.usage?.prompt_tokens ?? 0} tokens`, ...took].filter(Boolean).join(' · ')));
}

async function rank(path, body) {
  const [answer, took] = await whole(path, body);
  const rows = [...(answer.results ?? answer.data ?? [])].sort((a, b) => b.relevance_score - a.relevance_score);
  byId('play-out').replaceChildren(
    h('table', {}, h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Score'), h('th', { scope: 'col' }, 'Document'))),
      h('tbody', {}, rows.map((r) => h('tr', {}, h('td', { class: 'num' }, r.relevance_score.toFixed(3)), h('td', {}, body.documents[r.index]))))),
    h('p', { class: 'stats muted' }, [`${rows.length} documents`, ...took].filter(Boolean).join(' · ')));
}

async function run(event) {
  event.preventDefault();
  if (state.ctl) return;
  if (!session.infer) return toast('This needs a key that may run models.', true);
  state.ctl = new AbortController();
  byId('play-go').disabled = true;
  byId('play-stop').hidden = false;
  try {
    const [path, body] = request();
    await ({ embedding: embed, reranking: rank }[typeOf(state.model)] ?? chat)(path, body);
  } catch (err) {
    if (err.name !== 'AbortError') toast(err.message, true);
  } finally {
    state.ctl = null;
    if (byId('play-go')) {
      byId('play-go').disabled = false;
      byId('play-stop').hidden = true;
    }
  }
}

/** Code that sends the request that is written or, without one, the last that was sent; the key is named, never shown. */
function code(kind) {
  const [path, body] = request();
  if (state.messages.length && !byId('play-text').value && !state.picture) body.messages = state.messages.slice(0, -1);
  const url = location.origin + path;
  const json = JSON.stringify(body, null, 2);
  if (kind === 'curl') {
    const key = session.keyed ? ' \\\n  -H "Authorization: Bearer $REVEILLE_KEY"' : '';
    return `curl -sN ${url} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${json.replaceAll('\'', '\'\\\'\'')}'`;
  }
  const client = `from openai import OpenAI\n\nclient = OpenAI(base_url="${location.origin}/v1", api_key=${session.keyed ? 'os.environ["REVEILLE_KEY"]' : '"none"'})\n`;
  const literal = (v) => JSON.stringify(v, null, 2).replaceAll(/"(?:[^"\\]|\\.)*"|\b(?:true|false|null)\b/g, (word) => ({ true: 'True', false: 'False', null: 'None' })[word] ?? word);
  const start = session.keyed ? `import os\n${client}` : client;
  if (path.endsWith('completions')) {
    const { stream_options: _, ...plain } = body;
    return `${start}\nfor chunk in client.chat.completions.create(\n${args({ ...plain, stream: undefined })}    stream=True,\n):\n    print(chunk.choices[0].delta.content or "", end="", flush=True)\n`;
  }
  if (path.endsWith('embeddings')) return `${start}\nanswer = client.embeddings.create(\n${args(body)})\nprint([d.embedding[:4] for d in answer.data])\n`;
  const auth = session.keyed ? ', headers={"Authorization": "Bearer " + os.environ["REVEILLE_KEY"]}' : '';
  return `import os, requests\n\nanswer = requests.post("${url}", json=${literal(body)}${auth})\nprint(answer.json())\n`;
}

const args = (body) => Object.entries(body).filter(([, v]) => v !== undefined).map(([k, v]) => `    ${k}=${JSON.stringify(v)},\n`).join('');

function showCode(kind) {
  byId('code-title').textContent = kind === 'curl' ? 'curl' : 'Python';
  byId('code-text').textContent = code(kind);
  byId('code').showModal();
}

let built = null;

/** The view's elements: built once, so that an answer goes on while people look elsewhere. */
export function playView() {
  if (built) return built;
  const list = h('select', { id: 'play-model' });
  list.addEventListener('change', () => { state.model = list.value; mode(); });
  const form = h('form', { id: 'play-form', class: 'panel' });
  form.addEventListener('submit', run);
  form.addEventListener('click', (e) => {
    if (e.target.id === 'play-stop') state.ctl?.abort();
    if (e.target.id === 'play-clear' && !state.ctl) mode();
    if (e.target.id === 'play-curl') showCode('curl');
    if (e.target.id === 'play-python') showCode('python');
  });
  form.addEventListener('keydown', (e) => { if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) form.requestSubmit(); });
  built = [h('h1', {}, 'Playground'), field('play-model', 'Model', list), form, h('div', { id: 'play-out', class: 'out' })];
  return built;
}
