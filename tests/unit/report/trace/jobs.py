"""Traces of jobs whose answers are known: what the reports about ranks are given in tests."""

from unit.trace.chrome import kernel, launch, step, text, x

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


def rank(number, size, *, compute=300, steps=4, clock=0):
    """A rank of a job: in each step of 1000 us it computes from 10 us on, then takes part in an all-reduce.

    All ranks end that at 900 us.

    Parameters
    ----------
    compute
        How long it computes, microseconds.
    clock
        By how much its clock is ahead, microseconds.
    """
    events = []
    for index in range(steps):
        begin = index * 1000 + clock
        starts = begin + 10 + compute
        events += [
            step(index, begin, 1000),
            launch(begin, 5, 2 * index + 1),
            kernel("gemm", begin + 10, compute, 2 * index + 1),
            launch(begin + 6, 2, 2 * index + 2),
            x("aten::mm", begin, 6, **{"External id": index + 1}),
            kernel(
                REDUCE,
                starts,
                begin + 900 - starts,
                2 * index + 2,
                stream=20,
                **{
                    "Process Group Name": "0",
                    "Seq": index,
                    "Collective name": "allreduce",
                    "In msg nelems": 250_000,
                    "Out msg nelems": 250_000,
                    "dtype": "Float",
                    "Group size": size,
                },
            ),
        ]
    return text(events, baseTimeNanoseconds=0, distributedInfo={"rank": number, "world_size": size})


def write_job(folder, size=3, slow=1, **of_slow):
    """Files of a job whose rank `slow` computes twice as long as the others; `None` for none."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number in range(size):
        more = {"compute": 600, **of_slow} if number == slow else {}
        files.append(folder / f"rank{number}.json")
        files[-1].write_bytes(rank(number, size, **{"clock": 50 * number, **more}))
    return files
