"""Torch by itself is the same before, while and after something is captured: what C code sees of tensors, too."""

from __future__ import annotations

from tests.programs import run

SCRIPT = """
    import ctypes, warnings
    import numpy, torch, torchlens as tl
    from torch import nn

    warnings.simplefilter("ignore")

    class Derived(torch.Tensor):
        pass

    class Indexed(torch.Tensor):
        def __getitem__(self, place):
            return super().__getitem__(place)

    def asked(one, x):
        a, b = torch.tensor(0), torch.tensor(1)
        yield torch.tensor([one, one])
        yield torch.tensor([[one, one], [one, one]])
        yield torch.tensor((torch.ones(1), torch.ones(1)))
        yield torch.tensor([a == b, a == a])
        yield torch.tensor([nn.Parameter(one), one.as_subclass(Derived)])
        yield torch.as_tensor([one])
        yield torch.asarray([one, one])
        yield x.new_tensor([one])
        yield torch.Tensor([one, one])
        yield torch.FloatTensor([one])
        yield torch.LongTensor([a])
        yield x[[a, b]]
        yield x[a, [a, b]]
        yield x[a, b]
        yield x.view([b, -1])
        yield torch.zeros([b, 2])
        yield torch.sparse_coo_tensor([[a, b], [a, b]], [one, one], (2, 2)).to_dense()
        yield numpy.array([one, one])
        yield numpy.array([x, x])
        yield [*x], a in [b, a], sum([one, one]), [1, 2] * b, "%d" % b
        x[[a, b]] = one
        x[0] = torch.tensor([1.0, 2.0, 3.0])
        yield x

    def told():
        answers = asked(torch.tensor(1.5), torch.arange(6.0).reshape(2, 3))
        found = []
        while True:
            try:
                found.append(str(next(answers)))
            except StopIteration:
                return found
            except Exception as exc:
                found.append(repr(exc))
                return found

    def slots():
        get = ctypes.pythonapi.PyType_GetSlot
        get.argtypes, get.restype = [ctypes.py_object, ctypes.c_int], ctypes.c_void_p
        check = ctypes.pythonapi.PySequence_Check
        check.argtypes, check.restype = [ctypes.py_object], ctypes.c_int
        kinds = (torch.Tensor, nn.Parameter, Derived, Indexed)
        return [bool(get(kind, number)) for kind in kinds for number in range(39, 46)], check(torch.ones(2))

    class Model(nn.Module):
        def forward(self, x):
            seen.append((told(), slots()))
            return torch.tensor([x[0], x[1]]) * 2

    seen = []
    before = told(), slots()
    assert len(before[0]) == 21, before[0]
    for options in (tl.CaptureOptions(), tl.CaptureOptions(replayable=True)):
        trace = tl.trace(Model(), torch.ones(3), capture=options)
        assert torch.equal(trace.output, torch.full((2,), 2.0))
        assert seen.pop() == before, "while capturing"
        assert (told(), slots()) == before, "after capturing"
    with tl.wrapped():
        assert (told(), slots()) == before, "while wrapped"
    assert (told(), slots()) == before
"""


def test_what_torch_makes_of_lists_of_tensors_is_the_same_before_while_and_after_a_capture() -> None:
    run(SCRIPT)
