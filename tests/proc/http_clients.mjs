// Run by test_session_http_clients.py: one conversation with each client, one address each.
import assert from "node:assert";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const [chat, responses, messages] = process.argv.slice(2);
const QUESTION = "What is the pet of kai?";
const parameters = {
  type: "object",
  properties: { name: { type: "string" }, field: { type: "string" } },
};

async function chats(address) {
  const client = new OpenAI({ baseURL: `${address}/v1`, apiKey: "x" });
  const tools = [{ type: "function", function: { name: "lookup", parameters } }];
  const history = [{ role: "user", content: QUESTION }];
  const stream = client.chat.completions.stream({ model: "m", messages: history, tools });
  const first = (await stream.finalChatCompletion()).choices[0].message;
  assert.equal(first.tool_calls.length, 2);
  const { role, content, tool_calls } = first;
  const calls = tool_calls.map((call) => ({
    id: call.id, type: call.type,
    function: { name: call.function.name, arguments: call.function.arguments },
  }));
  history.push({ role, content, reasoning_content: "hm", tool_calls: calls });
  for (const call of calls) {
    history.push({ role: "tool", tool_call_id: call.id, content: "cat" });
  }
  const second = await client.chat.completions.create({ model: "m", messages: history, tools });
  assert.equal(second.choices[0].message.content, "cat");
  console.log("chat");
}

async function responds(address) {
  const client = new OpenAI({ baseURL: `${address}/v1`, apiKey: "x" });
  const tools = [{ type: "function", name: "lookup", parameters, strict: false }];
  const stream = await client.responses.create({
    model: "m", input: QUESTION, tools, stream: true,
  });
  let text = "";
  for await (const event of stream) {
    if (event.type === "response.output_text.delta") text += event.delta;
    if (event.type === "response.completed") {
      assert.equal(event.response.output.filter((i) => i.type === "function_call").length, 2);
    }
  }
  assert.equal(text, "Let me look.");
  console.log("responses");
}

async function speaks(address) {
  const client = new Anthropic({ baseURL: address, apiKey: "x" });
  const tools = [{ name: "lookup", input_schema: parameters }];
  const stream = client.messages.stream({
    model: "m", max_tokens: 200, tools, messages: [{ role: "user", content: QUESTION }],
  });
  const first = await stream.finalMessage();
  assert.deepEqual(first.content.map((b) => b.type), ["thinking", "text", "tool_use", "tool_use"]);
  assert.deepEqual(first.content[2].input, { name: "kai", field: "pet" });
  console.log("messages");
}

await chats(chat);
await responds(responses);
await speaks(messages);
