"""`tandem serve` on a model that others made, SmolLM2-135M-Instruct, asked by OpenAI's own client: that its vectors find what is
meant, that functions are called with what was asked for, and that logprobs are what `tandem logits` says.

SPDX-License-Identifier: Apache-2.0

usage: test_serve_smollm2.py BUILD_FOLDER [unittest arguments]

`tandem fetch smollm2` brings the model, PyPI the client; exits 77 where either is not there and cannot be reached.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import limits
from tool import logits_file, pypi, test_serve
from tool.test_serve import said

REMEMBERED = {
    "The blacksmith forges swords and horseshoes in his workshop.": "Who can make me a new sword?",
    "The river floods the lower fields every spring.": "Is there danger of high water on the farmland?",
    "The innkeeper's daughter fell ill with a fever last week.": "Who is sick?",
    "A band of thieves robbed the merchant's caravan on the north road.": "What happened to the trader's wagons?",
    "The king raised the tax on grain and salt.": "How much do we have to pay the crown?",
    "The old wizard keeps a library of forbidden spell books in the tower.": "Where can I learn magic?",
    "Wolves have been killing sheep near the forest.": "What animals attack the flock?",
    "The baker sells fresh bread and honey cakes in the market.": "I am hungry, where can I buy food?",
}
BOUND = 0.03  # of a logprob: tokens that are computed together, and one by one, are rounded in other places
WEATHER = test_serve.tool("get_weather", type="object", required=["city", "unit"], additionalProperties=False,
                          properties={"city": {"type": "string", "maxLength": 30}, "unit": {"enum": ["celsius", "fahrenheit"]}})


class SmolLM2(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = test_serve.Server("--context", "512", model=MODEL)
        cls.client = OPENAI.OpenAI(base_url=f"http://127.0.0.1:{cls.server.port}/v1", api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.__exit__()

    def chat(self, *messages, **more):
        return self.client.chat.completions.create(model="smollm2", messages=messages, temperature=0, **more)

    def test_memories(self):
        """A question's vector is nearest to that of what answers it."""
        made = self.client.embeddings.create(model="smollm2", input=[*REMEMBERED, *REMEMBERED.values()])
        vectors = [one.embedding for one in made.data]
        memories, questions = vectors[:len(REMEMBERED)], vectors[len(REMEMBERED):]
        for i, question in enumerate(questions):
            likeness = [sum(a * b for a, b in zip(question, memory)) for memory in memories]
            self.assertEqual(likeness.index(max(likeness)), i, list(REMEMBERED.values())[i])

    def test_calls(self):
        """One that is required, of what was asked for; one that is not, after another like it."""
        asked = {"tools": [WEATHER], "max_tokens": 80, "parallel_tool_calls": False}
        required = self.chat(said("What is the weather in Paris?"), tool_choice="required", **asked).choices[0]
        call, = required.message.tool_calls
        self.assertEqual((required.finish_reason, call.function.name), ("tool_calls", "get_weather"))
        arguments = json.loads(call.function.arguments)
        self.assertEqual(arguments["city"], "Paris")
        self.assertIn(arguments["unit"], ("celsius", "fahrenheit"))
        before = {"id": "call_1", "type": "function",
                  "function": {"name": "get_weather", "arguments": '{"city": "Berlin", "unit": "celsius"}'}}
        dialogue = [said("What is the weather in Berlin?"), {"role": "assistant", "tool_calls": [before]},
                    {"role": "tool", "tool_call_id": "call_1", "content": "12 degrees"}, said("It is 12 degrees.", "assistant")] * 2
        chunks = list(self.chat(*dialogue, said("What is the weather in Rome?"), stream=True, **asked))
        pieces = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
        self.assertEqual(pieces[0].function.name, "get_weather")
        self.assertEqual(json.loads("".join(piece.function.arguments for piece in pieces))["city"], "Rome")
        self.assertEqual(chunks[-1].choices[0].finish_reason, "tool_calls")

    def test_who_goes_away(self):
        """A slot is free within a token: what is said to nobody is no more than was under way."""
        before = self.server.metrics()
        stream = self.chat(said("Tell me a long story."), stream=True, max_tokens=400)
        heard = sum(bool(chunk.choices[0].delta.content) for chunk, _ in zip(stream, range(6)))
        stream.close()
        self.server.until(cancelled_total=before["cancelled_total"] + 1, slots_busy=0)
        made = self.server.metrics()["reply_tokens_total"] - before["reply_tokens_total"]
        self.assertTrue(heard <= made <= heard + 3, (heard, made))

    def test_logprobs(self):
        prompt = "Once upon a time, there was a little girl who"
        answer = self.client.completions.create(model="smollm2", prompt=prompt, max_tokens=8, temperature=0, logprobs=3).choices[0]
        told = answer.logprobs
        self.assertEqual("".join(told.tokens), answer.text)
        self.assertEqual(told.text_offset, [len(prompt + "".join(told.tokens[:i])) for i in range(len(told.tokens))])
        with tempfile.TemporaryDirectory(prefix="tandem-smollm2-") as folder:
            ids = limits.run([TOOL, "tokenize", "--model", MODEL, "--ids"], input=prompt + answer.text, capture_output=True, text=True,
                             check=True, seconds=60).stdout.strip()
            rows = logits_file.likely(TOOL, MODEL, ids, pathlib.Path(folder) / "logits.safetensors")
        count = len(told.tokens)
        tokens = [int(i) for i in ids.split(",")][-count:]
        for token, logprob, tops, row in zip(tokens, told.token_logprobs, told.top_logprobs, rows[-count - 1:-1]):
            self.assertAlmostEqual(logprob, row[token], delta=BOUND)
            for found, expected in zip(sorted(tops.values(), reverse=True), sorted(row, reverse=True)[:3]):
                self.assertAlmostEqual(found, expected, delta=BOUND)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: test_serve_smollm2.py BUILD_FOLDER [unittest arguments]")
    test_serve.BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    test_serve.TOOL = TOOL = test_serve.BUILD / "tandem"
    fetched = subprocess.run([TOOL, "fetch", "smollm2"], stdout=subprocess.PIPE, text=True, check=False)
    MODEL, OPENAI = pathlib.Path(fetched.stdout.strip()), test_serve.find_client()
    if not (test_serve.BUILD / "tandem-serve").exists() or fetched.returncode or not OPENAI:
        print("test_serve_smollm2: no server, no model or no client", file=sys.stderr)
        sys.exit(pypi.SKIPPED)
    unittest.main()
