"""Drills: LoRA's states and traffic, many adapters on one base; boosted trees; feeding data."""

from labkit import calc
from labkit.interview.drills.drill import amounts, billions, drill
from labkit.interview.drills.question import Solution, Trap

_FROZEN = calc.Recipe(name="frozen", parameter_bytes=2, gradient_bytes=0)
_DRAWS = {
    "params": billions(3, 7, 8, 9, 13, 14, 27, 32, 34, 70, 72),
    "adapters": amounts("20 million", "40 million", "80 million", "160 million", "320 million"),
}


@drill(
    "ec-2",
    "Memory of LoRA",
    difficulty=2,
    notebook="28_adapters",
    prompt="LoRA trains {adapters} parameters of adapters beside {params} frozen ones in bf16. The "
    "adapters have bf16 parameters and gradients, a float32 master copy and Adam's two moments in "
    "float32. How much memory do weights and training states take, without activations?",
    draws=_DRAWS,
    unit="GB",
    digits=3,
    between=("10 GB", "200 GB"),
)
def lora_states(params: float, adapters: float) -> Solution:
    """2 N frozen, 16 a trained one."""
    frozen = calc.model_state_bytes(params, _FROZEN)
    trained = calc.model_state_bytes(adapters, "zero_paper")
    full = calc.model_state_bytes(params, "zero_paper")
    return Solution(
        frozen + trained,
        [
            f"Frozen: 2 B x {params / 1e9:g}B = {frozen}; no gradients, no moments.",
            f"Trained: {calc.RECIPES['zero_paper'].bytes_per_parameter:g} B x "
            f"{adapters / 1e6:g}M = {trained}.",
            f"Together {frozen + trained}; training everything would take {full}.",
        ],
        [
            Trap("training everything", full, "Frozen parameters have no gradient and no moments."),
            Trap("the adapters alone", trained, "The frozen weights are in memory, too."),
            Trap(
                "gradients of the frozen weights",
                float(frozen) * 2 + float(trained),
                "Backward goes through frozen weights without a gradient of theirs being kept.",
            ),
        ],
    )


@drill(
    "ec-2",
    "Traffic of LoRA",
    difficulty=2,
    notebook="28_adapters",
    prompt="{n} GPUs train LoRA with DDP: {adapters} parameters of adapters, {params} frozen. "
    "Gradients travel in bf16 on a ring. How much does each GPU send in a step?",
    draws={**_DRAWS, "n": (4, 8, 16, 32)},
    unit="MB",
    digits=3,
    between=("20 MB", "2 GB"),
)
def lora_traffic(n: int, params: float, adapters: float) -> Solution:
    """2(n-1)/n of the adapters' gradients."""
    sent = calc.step_traffic_bytes("ddp", adapters, n)
    full = calc.step_traffic_bytes("ddp", params, n)
    return Solution(
        sent,
        [
            "Only parameters that are trained have gradients to reduce.",
            f"2 B x {adapters / 1e6:g}M, of that 2 x {n - 1}/{n}: {sent}.",
            f"Training everything would send {full}.",
        ],
        [
            Trap(
                "all gradients",
                full,
                "Frozen parameters have no gradients, so nothing of them is reduced.",
            ),
            Trap(
                "one phase instead of two",
                float(sent) / 2,
                "An all-reduce is a reduce-scatter and an all-gather.",
            ),
            Trap(
                "n instead of n - 1",
                float(sent) * n / (n - 1),
                "A rank sends 2(n - 1)/n of the gradients.",
            ),
            Trap("float32 gradients", float(sent) * 2, "A bf16 number has 2 bytes."),
        ],
    )


@drill(
    "ec-4",
    "Traffic of a level of a tree",
    difficulty=2,
    notebook="27_boosted_trees",
    prompt="Boosted trees on {n} machines that share the rows: {features} features with {bins} "
    "bins, and two sums of 8 bytes in each bin. {nodes} nodes of a level look for a split; one of "
    "two siblings is summed, the other comes by subtraction. The sums are merged by a ring "
    "all-reduce. How much does each machine send for the level?",
    draws={
        "n": (4, 8, 16, 32),
        "features": (100, 200, 400, 1000),
        "bins": (64, 128, 256),
        "nodes": (8, 16, 32),
    },
    unit="MB",
    digits=3,
    between=("500 KB", "500 MB"),
)
def boosted_level(n: int, features: int, bins: int, nodes: int) -> Solution:
    """2(n-1)/n of two sums for each feature, bin and summed node."""
    sent = calc.boosting_level_bytes("all_reduce", n, features, bins, nodes)
    summed = calc.histogram_bytes(features, bins, nodes // 2)
    return Solution(
        sent,
        [
            f"Summed: {nodes} / 2 = {nodes // 2} nodes.",
            f"Their sums: 2 x {features:,} x {bins} x {nodes // 2} x 8 B = {summed}.",
            f"A ring all-reduce sends 2 x {n - 1}/{n} of that: {sent}. Rows do not appear.",
        ],
        [
            Trap(
                "both siblings",
                calc.boosting_level_bytes(
                    "all_reduce", n, features, bins, nodes, subtraction=False
                ),
                "One sibling is the parent less the other. It is neither summed nor sent.",
            ),
            Trap(
                "one phase, or one sum",
                float(sent) / 2,
                "An all-reduce sends the sums almost twice, and a bin has two: of g and of h.",
            ),
            Trap("the sums once", summed, "A ring all-reduce sends 2(n - 1)/n of the sums."),
        ],
    )


@drill(
    "ec-4",
    "Voting for features",
    difficulty=3,
    notebook="27_boosted_trees",
    prompt="{n} machines share the rows of a table with {features} features and {bins} bins. For "
    "each node every machine votes for its {k} best features. The 2 x {k} features with the most "
    "votes are merged by a reduce-scatter of two 8-byte sums per bin. How much does each machine "
    "send of sums for {nodes} nodes? (No sibling is subtracted: its features may be others.)",
    draws={
        "n": (4, 8, 16, 32),
        "features": (1000, 2000, 5000, 10_000),
        "bins": (64, 128, 256),
        "k": (8, 16, 32, 64),
        "nodes": (4, 8, 16),
    },
    unit="MB",
    digits=3,
    between=("100 KB", "100 MB"),
)
def voted_features(n: int, features: int, bins: int, k: int, nodes: int) -> Solution:
    """(n-1)/n of two sums for each of 2k features, bin and node."""
    voting = calc.boosting_level_bytes("voting", n, features, bins, nodes, top_k=k)
    sent = voting["sums"]
    everything = calc.boosting_level_bytes(
        "reduce_scatter", n, features, bins, nodes, subtraction=False
    )["sums"]
    return Solution(
        sent,
        [
            f"Features that are summed: 2 x {k} = {2 * k}, of {features:,}.",
            f"Their sums: 2 x {2 * k} x {bins} x {nodes} x 8 B = "
            f"{calc.histogram_bytes(2 * k, bins, nodes)}.",
            f"A reduce-scatter sends {n - 1}/{n} of that: {sent}. Votes add {voting['votes']}.",
        ],
        [
            Trap("all features", everything, "Only the features with the most votes are summed."),
            Trap(
                "k features", float(sent) / 2, "Twice as many features are summed as one votes for."
            ),
            Trap(
                "an all-reduce",
                2 * float(sent),
                "After a reduce-scatter each machine has the sums of its share of the features.",
            ),
        ],
    )


@drill(
    "ec-6",
    "Adapters that fit beside a base",
    difficulty=2,
    notebook="28_adapters",
    prompt="A GPU of {memory} serves a base of {params} parameters in bf16. {cache} are for the "
    "cache of keys and values. An adapter has {adapters} parameters in bf16. How many adapters fit "
    "beside the base?",
    draws={
        "params": billions(7, 8, 9, 13, 14),
        "memory": amounts("48 GB", "80 GB", "96 GB"),
        "cache": amounts("8 GB", "12 GB", "16 GB"),
        "adapters": amounts("20 million", "40 million", "80 million", "160 million"),
    },
    unit="",
    digits=4,
    between=("1", "2000"),
)
def adapters_beside_a_base(params: float, memory: float, cache: float, adapters: float) -> Solution:
    """(memory - cache - 2 N) / 2 of an adapter, rounded down."""
    base, of_each = 2 * params, 2 * adapters
    room = memory - cache - base
    return Solution(
        room // of_each,
        [
            f"Base: 2 B x {params / 1e9:g}B = {base / 1e9:g} GB. Room: "
            f"{(memory - cache - base) / 1e9:g} GB.",
            f"An adapter: 2 B x {adapters / 1e6:g}M = {of_each / 1e6:g} MB.",
            f"{room / 1e9:g} GB / {of_each / 1e6:g} MB, rounded down: {room // of_each:g}.",
        ],
        [
            Trap(
                "a base for each adapter",
                (memory - cache) // (base + of_each),
                "All adapters share one base; only their own weights are added.",
            ),
            Trap(
                "the cache forgotten",
                (memory - base) // of_each,
                "Keys and values of the requests need their memory, too.",
            ),
            Trap(
                "training states",
                room // (8 * of_each),
                "Serving needs the weights, 2 B each; 16 B are for training with Adam.",
            ),
        ],
    )


@drill(
    "ec-6",
    "Rows of many adapters",
    difficulty=1,
    notebook="28_adapters",
    prompt="A model has {layers} layers with {matrices} adapted matrices each. A batch of {rows} "
    "rows uses {used} of {loaded} loaded adapters. Rows are grouped by adapter, without a grouped "
    "kernel. How many products, with base weights and with A and B, does a forward pass make in "
    "the adapted matrices?",
    draws={
        "layers": (16, 32, 40, 48),
        "matrices": (2, 4, 7),
        "rows": (32, 64, 128),
        "used": (3, 5, 8, 12),
        "loaded": (50, 100, 200),
    },
    unit="",
    digits=4,
    between=("100", "20000"),
)
def products_of_rows(layers: int, matrices: int, rows: int, used: int, loaded: int) -> Solution:
    """One with W, and two for each adapter that has rows."""
    each = layers * matrices
    return Solution(
        each * (1 + 2 * used),
        [
            f"{layers} x {matrices} = {each} adapted matrices.",
            "W x is one product for all rows.",
            f"Each adapter with rows has two: A x, and B times that. 2 x {used} = {2 * used}.",
            f"{each} x (1 + {2 * used}) = {each * (1 + 2 * used)}.",
        ],
        [
            Trap(
                "all loaded adapters",
                each * (1 + 2 * loaded),
                "An adapter without rows in the batch is not computed.",
            ),
            Trap(
                "a product for each row", each * (1 + 2 * rows), "Rows of one adapter are grouped."
            ),
            Trap(
                "the base again for each adapter",
                each * 3 * used,
                "W is the same for all rows: one product.",
            ),
        ],
    )


@drill(
    "ec-6",
    "Bytes per second of a job's data",
    difficulty=1,
    notebook="32_feeding_many_ranks",
    prompt="{n} GPUs train on images. Each computes {rate} images per second, and a stored image "
    "has {size} on average. How many bytes per second does storage have to deliver to the job?",
    draws={
        "n": (16, 32, 64, 128, 256),
        "rate": (400, 800, 1500, 3000),
        "size": amounts("50 KB", "110 KB", "200 KB", "600 KB"),
    },
    unit="GB/s",
    digits=3,
    between=("0.3 GB/s", "200 GB/s"),
)
def feed_rate(n: int, rate: int, size: float) -> Solution:
    """N s b."""
    needed = calc.feed_bytes_per_s(n, rate, size)
    return Solution(
        needed,
        [
            f"All GPUs compute {n} x {rate} = {n * rate:,} images per second.",
            f"Each is read once per epoch, {size / 1e3:g} KB: {needed}.",
            "Caches do not help if the data set is larger than they are.",
        ],
        [
            Trap("one GPU", float(needed) / n, "All GPUs read at the same time."),
            Trap("bits", float(needed) * 8, "The question asks for bytes, and links are in bits."),
            Trap(
                "one host of eight GPUs",
                float(needed) * 8 / n,
                "This is what one host of eight GPUs needs. Storage feeds all hosts.",
            ),
        ],
    )


@drill(
    "ec-6",
    "Shards over readers",
    difficulty=2,
    notebook="32_feeding_many_ranks",
    prompt="{shards} equal shards are dealt to {n} ranks with {workers} workers each, whole shards "
    "only. An epoch ends when the busiest worker has finished. Which share of all workers' time "
    "in the epoch is idle?",
    draws={
        "shards": (40, 60, 75, 90, 110, 130, 170, 210, 260, 310),
        "n": (3, 4, 6, 8, 12, 16),
        "workers": (2, 3, 4, 8),
    },
    unit="%",
    digits=2,
    between=("2%", "50%"),
)
def idle_readers(shards: int, n: int, workers: int) -> Solution:
    """1 - S / (R ceil(S / R))."""
    readers = n * workers
    most, idle = -(-shards // readers), calc.idle_reader_share(shards, readers)
    return Solution(
        idle,
        [
            f"{n} x {workers} = {readers} readers; the busiest has ceil({shards} / {readers}) = "
            f"{most} shards.",
            f"In that time all could read {readers} x {most} = {readers * most} shards.",
            f"{readers * most - shards} of these places are empty: {idle}.",
        ],
        [
            Trap(
                "ranks instead of readers",
                calc.idle_reader_share(shards, n),
                "Each worker of each rank is a reader of its own.",
            ),
            Trap(
                "of the shards",
                (readers * most - shards) / shards,
                "The empty places are a share of all places, not of the shards.",
            ),
            Trap(
                "only full rounds",
                shards % readers / shards,
                "These shards are read, too, if nothing is dropped: then others wait.",
            ),
        ],
    )


@drill(
    "ec-6",
    "Time to fill a shuffle buffer",
    difficulty=2,
    notebook="32_feeding_many_ranks",
    prompt="Each of {workers} workers of a rank fills a shuffle buffer of {buffer} samples of "
    "{size} before it yields the first one. The rank reads at {rate} in all. How long does the "
    "first sample take?",
    draws={
        "workers": (2, 4, 8),
        "buffer": (1_000, 2_000, 5_000, 10_000),
        "size": amounts("20 KB", "50 KB", "100 KB", "200 KB"),
        "rate": amounts("100 MB/s", "200 MB/s", "500 MB/s"),
    },
    unit="s",
    digits=3,
    between=("1 s", "100 s"),
)
def shuffle_buffer_seconds(workers: int, buffer: int, size: float, rate: float) -> Solution:
    """W B b / r."""
    held = workers * buffer * size
    return Solution(
        held / rate,
        [
            f"The buffers hold {workers} x {buffer:,} samples, {held / 1e9:g} GB, which is also "
            "what they take of the host's memory.",
            f"All of it passes the link first: {held / rate:.3g} s.",
            "A restart pays it again, unless the buffer shuffles ids instead of samples.",
        ],
        [
            Trap("one worker", held / rate / workers, "The workers share what the rank reads."),
            Trap(
                "one sample",
                size / rate,
                "A buffer yields its first sample when it is full, not when a sample has come.",
            ),
        ],
    )
