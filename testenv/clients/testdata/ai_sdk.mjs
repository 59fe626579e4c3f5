// The AI SDK's examples against ORIGIN (argument 1): texts, streams, a tool that is called, and embeddings, by three providers.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const origin = process.argv[2];
const require = createRequire(process.cwd() + "/");
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { embed, generateText, stepCountIs, streamText, tool } = await load("ai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { createAnthropic } = await load("@ai-sdk/anthropic");
const { z } = await load("zod");

const openai = createOpenAI({ baseURL: origin + "/v1", apiKey: "none" });
const compatible = createOpenAICompatible({ name: "reveille", baseURL: origin + "/v1", includeUsage: true });
const anthropic = createAnthropic({ baseURL: origin + "/v1", apiKey: "none" });

const models = { responses: openai("coder"), chat: openai.chat("coder"), compatible: compatible("coder"), messages: anthropic("coder") };
for (const [name, model] of Object.entries(models)) {
  const { text } = await generateText({ model, prompt: "<<say good morning>>" });
  assert.equal(text, "good morning", name);

  const streamed = streamText({ model, prompt: "<<say good night>>" });
  let whole = "";
  for await (const part of streamed.textStream) whole += part;
  assert.equal(whole, "good night", name);
  assert.ok((await streamed.usage).outputTokens > 0, name);

  const written = [];
  const result = await generateText({
    model,
    providerOptions: { openai: { store: false } }, // the gateway stores nothing by default
    stopWhen: stepCountIs(3),
    tools: {
      write: tool({
        description: "Write a file",
        inputSchema: z.object({ path: z.string(), lines: z.array(z.string()) }),
        execute: async (input) => (written.push(input), "written"),
      }),
    },
    prompt: '<<call write {"path": "a.txt", "lines": ["one", "two"]}>>',
  });
  assert.deepEqual(written, [{ path: "a.txt", lines: ["one", "two"] }], name);
  assert.equal(result.text, "Done.", name);
  assert.equal(result.steps.length, 2, name);
}

for (const model of [openai.textEmbeddingModel("vec"), compatible.textEmbeddingModel("vec")]) {
  const { embedding } = await embed({ model, value: "sunny day at the beach" });
  assert.ok(embedding.length > 0);
}
