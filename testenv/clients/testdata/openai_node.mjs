// OpenAI's client for Node against ORIGIN (argument 1): chats, the stream helper with a tool, responses, forms, embeddings.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(process.cwd() + "/");
const { default: OpenAI, toFile } = await import(pathToFileURL(require.resolve("openai")));
const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "<<say good morning>>" }];

assert.ok((await client.models.list()).data.some((m) => m.id === "coder"));
assert.equal((await client.chat.completions.create({ model: "coder", messages })).choices[0].message.content, "good morning");
assert.equal(await client.chat.completions.stream({ model: "coder", messages }).finalContent(), "good morning");

let written = "";
const runner = client.chat.completions.runTools({
  model: "coder",
  stream: true,
  messages: [{ role: "user", content: '<<call write {"path": "a.txt"}>>' }],
  tools: [{
    type: "function",
    function: {
      name: "write", description: "Write a file", parse: JSON.parse,
      parameters: { type: "object", properties: { path: { type: "string" } } },
      function: ({ path }) => ((written = path), "written"),
    },
  }],
});
assert.equal(await runner.finalContent(), "Done.");
assert.equal(written, "a.txt");

const response = await client.responses.stream({ model: "coder", input: "<<say good night>>" }).finalResponse();
assert.equal(response.output_text, "good night");
assert.ok((await client.embeddings.create({ model: "vec", input: "a" })).data[0].embedding.length > 0);

const sound = Buffer.from(process.argv[3], "base64"), picture = Buffer.from(process.argv[4], "base64");
for (let i = 0; i < 10; i++) { // forms once failed now and then
  assert.ok((await client.audio.transcriptions.create({ model: "ear", file: await toFile(sound, "a.wav") })).text);
}
const edited = await client.images.edit({ model: "brush", prompt: "red", image: await toFile(picture, "a.png", { type: "image/png" }) });
assert.ok(edited.data[0].b64_json);
