"""What the scripts that compare generation share: the model's shape, its tokens, the `decode` program,
turns of peers and ds."""
import contextlib
import json
import statistics
import tempfile

import common

SHAPE = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
         "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def parser(doc):
    """For peers with a choice of forms, caches and prompts; the heap is not tuned for either."""
    made = common.parser(doc)
    made.add_argument("program", help="the program `decode`")
    made.add_argument("--prompts", default="32,990", help="lengths of prompts")
    made.add_argument("--new", type=int, default=24, help="tokens after the prompt")
    made.add_argument("--caches", default="auto,int8", help="auto: numbers of 16 or 32 bits")
    made.set_defaults(rounds=3, stock=True)
    return made


@contextlib.contextmanager
def config_file():
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"model_type": "gpt2", **SHAPE}, file)
        file.flush()
        yield file.name


def prompt_ids(count, vocabulary=SHAPE["vocab_size"]):
    return [i * 7919 % vocabulary for i in range(count)]


def generate(feed, prompt, new):
    """Milliseconds until the first token, and of each token after it; feed takes tokens and returns
    the milliseconds until their logits are there."""
    first = feed(prompt_ids(prompt))
    return first, [feed([i * 104729 % SHAPE["vocab_size"]]) for i in range(new - 1)]


def run_ours(args, config, form, prompt, group, rounds, codes=False, int8_cache=False):
    """codes: activations of prompts in 8 bits."""
    return common.run_json([args.program, config, form, str(prompt), str(args.new), str(args.threads),
                            str(group), str(rounds), "0", str(int(codes)), str(int(int8_cache))])


def compare(args, report, peers, ours, columns):
    """peers: ways of one peer, name -> function of a prompt's length that returns as generate();
    ours: form of ds -> function of it that returns what the program says. All take turns; a row for
    each form of ds, beside the way that was the fastest for tokens and the one for prompts; `ways` has
    each way's milliseconds of a token and of the prompt."""
    median = statistics.median
    for prompt in [int(p) for p in args.prompts.split(",")]:
        firsts, tokens = {way: [] for way in peers}, {way: [] for way in peers}
        said = {form: [] for form in ours}
        for peer in peers.values():
            peer(prompt)
        for _ in range(args.rounds):
            for way, peer in peers.items():
                first, later = peer(prompt)
                firsts[way].append(first)
                tokens[way].extend(later)
            for form, mine in ours.items():
                said[form].append(mine(prompt))
        peer_token, token_way = min((median(times), way) for way, times in tokens.items())
        peer_prompt, prompt_way = min((median(times), way) for way, times in firsts.items())
        ways = ", ".join(f"{way} {median(tokens[way]):.3g} {median(firsts[way]):.3g}" for way in peers)
        for form, words in said.items():
            token, first = (median(w[key] for w in words) for key in ("ms_per_token", "prompt_ms"))
            report.row(**columns, prompt=prompt, way=token_way, peer_ms_per_token=peer_token, ds=form,
                       ds_ms_per_token=token, ratio=peer_token / token,
                       kv_share=median(w["kv_share"] for w in words), prompt_way=prompt_way,
                       peer_prompt_ms=peer_prompt, ds_prompt_ms=first, prompt_ratio=peer_prompt / first,
                       ways=ways)
