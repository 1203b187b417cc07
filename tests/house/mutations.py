"""Small wrong changes of a module: what can be changed, and the module with one change made.

Takes the text of a module and returns syntax trees; runs nothing and imports nothing of ours.
Left alone are texts for people (docstrings, errors, log lines, f-strings), types, decorators,
`__repr__`, Protocols, assertions, `invariants()` and its calls (an assertion by another name), and
members of an Enum that are named twice.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

_TEXT_MAX = 90
_SILENT_FUNCTIONS = frozenset({"__repr__", "__str__", "invariants", "__getstate__"})
_SILENT_NAMES = frozenset({"__all__", "__slots__", "__match_args__"})
_SILENT_FIELDS = frozenset({"annotation", "returns", "decorator_list", "type_params", "bases"})
_SILENT_ARGUMENTS = frozenset({"description", "help", "doc", "comment"})
# `_hidden` gives a field a name on the wire that no peer sends.
_SILENT_CALLS = frozenset(
    {"cast", "TypeVar", "NewType", "ParamSpec", "getLogger", "isinstance", "_hidden"}
)
_SILENT_NODES = (ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)
_SENTENCE = re.compile(r"(?!(SELECT|INSERT|UPDATE|DELETE|CREATE|WITH)\b)\S+( \S+){3,}")
_LOG = re.compile(r"_?(log|logger)$", re.IGNORECASE)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_COUNTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
_OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Owner(NamedTuple):
    """The outermost function around a change, as its code object names it."""

    name: str
    line: int


class _Spot(NamedTuple):
    """A node, where it hangs, and what lies around it within its statement."""

    node: ast.AST
    parent: ast.AST
    field: str
    at: int | None
    around: tuple[ast.AST, ...]
    owner: Owner | None

    def hang(self, node: ast.AST) -> None:
        if self.at is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.at] = node


@dataclass(frozen=True)
class Mutation:
    """One change of a module."""

    number: int
    _spot: _Spot
    _other: ast.AST

    @property
    def line(self) -> int:
        """Where the changed piece begins."""
        return int(getattr(self._spot.node, "lineno", 0))

    @property
    def lines(self) -> tuple[int, int]:
        """The first and last line one of which must run for the change to be noticed."""
        return _lines(self._spot)

    @property
    def owner(self) -> Owner | None:
        """The outermost function around the change; None where it runs at import."""
        return self._spot.owner

    @cached_property
    def texts(self) -> tuple[str, str]:
        """What stood there, and what stands there now."""
        return _texts(self._spot, self._other)


def _name(node: ast.AST) -> str:
    """Return the last part of a dotted name, and "" of anything else."""
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    return getattr(node, "attr", getattr(node, "id", ""))


def _is_log_call(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr) else node
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and bool(_LOG.search(_name(call.func.value)))
    )


def _is_silent(node: ast.AST) -> bool:
    """Tell whether a node and all below it is left alone."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            marks = {_name(each) for each in node.decorator_list}
            return node.name in _SILENT_FUNCTIONS or bool(marks & {"overload", "abstractmethod"})
        case ast.ClassDef():
            return any(_name(each) == "Protocol" for each in node.bases)
        case ast.Expr(value=ast.Constant() | ast.Call(func=ast.Attribute(attr="invariants"))):
            return True
        case ast.If():
            return _name(node.test) == "TYPE_CHECKING"
        case ast.Assign():
            return any(_name(each) in _SILENT_NAMES for each in node.targets)
        case ast.Call():
            return _name(node.func) in _SILENT_CALLS
        case ast.keyword():
            return node.arg in _SILENT_ARGUMENTS
    return isinstance(node, _SILENT_NODES) or _is_log_call(node)


def _is_label(node: ast.AST, child: ast.AST) -> bool:
    """Tell whether a child is a member of an Enum whose value only repeats its name."""
    match node, child:
        case ast.ClassDef(), ast.Assign(
            targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))
        ):
            is_enum = any(_name(each) == "Enum" for each in node.bases)
            return is_enum and text.replace(" ", "_").replace("-", "_") == name.lower()
    return False


def _has_silent_keywords(node: ast.AST) -> bool:
    """Tell whether keywords are of a class, or the `strict` of a zip, which asserts."""
    return isinstance(node, ast.ClassDef) or (
        isinstance(node, ast.Call) and _name(node.func) == "zip"
    )


def _spots(
    node: ast.AST, around: tuple[ast.AST, ...] = (), owner: Owner | None = None, prefix: str = ""
) -> Iterator[_Spot]:
    """Walk what may be changed below a node, in the order of the source."""
    for field, value in ast.iter_fields(node):
        if field in _SILENT_FIELDS or (field == "keywords" and _has_silent_keywords(node)):
            continue
        inner = owner
        if isinstance(node, _FUNCTIONS) and field == "body" and owner is None:
            first = min([each.lineno for each in node.decorator_list] + [node.lineno])
            inner = Owner(prefix + node.name, first)
        within = f"{prefix}{node.name}." if isinstance(node, ast.ClassDef) else prefix
        children = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, child in children:
            if not isinstance(child, ast.AST) or _is_silent(child) or _is_label(node, child):
                continue
            nearer = (child,) if isinstance(child, ast.stmt) else (*around, child)
            yield _Spot(child, node, field, index, nearer, inner)
            if not isinstance(child, ast.Raise):
                yield from _spots(child, nearer, inner, within)


def _constants(value: object) -> Iterator[bool | int | float | str | bytes]:
    match value:
        case bool():
            yield not value
        case int() | float():
            yield value + 1
            if value:
                yield value - 1
        case str() if _SENTENCE.match(value.strip()):
            return  # it is for people
        case str() | bytes() if value:
            yield value[:0]


def _negated(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _of_expression(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may stand in place of an expression."""
    match node:
        case ast.Compare():
            for other in _COMPARED[type(node.ops[0])]:
                yield ast.Compare(node.left, [other(), *node.ops[1:]], node.comparators)
        case ast.BinOp() if type(node.op) in _COUNTED and not _is_of_text(node):
            yield ast.BinOp(node.left, _COUNTED[type(node.op)](), node.right)
        case ast.BoolOp():
            yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.Constant():
            yield from (ast.Constant(value) for value in _constants(node.value))
        case ast.Call(func=ast.Name(id=name)) if name in _OPPOSITES:
            yield ast.Call(ast.Name(_OPPOSITES[name], ast.Load()), node.args, node.keywords)


def _is_of_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def _of_statement(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may stand in place of a statement."""
    match node:
        case ast.Return(value=ast.Constant(value=None | False)):
            return  # nothing is as false as False
        case ast.Return(value=value) if value is not None:
            yield ast.Return(ast.Constant(None))
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
        case ast.AugAssign() if type(node.op) in _COUNTED:
            yield ast.AugAssign(node.target, _COUNTED[type(node.op)](), node.value)
            yield ast.Pass()
        case ast.Raise() | ast.Delete() | ast.Expr(value=ast.Call() | ast.Await()):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()


def _of_test(spot: _Spot) -> Iterator[ast.AST]:
    """Yield what may stand in place of a condition."""
    conditional = isinstance(spot.parent, ast.If | ast.IfExp) and spot.field == "test"
    filtering = isinstance(spot.parent, ast.comprehension) and spot.field == "ifs"
    looping = isinstance(spot.parent, ast.While) and spot.field == "test"
    if not (conditional or filtering or looping) or not isinstance(spot.node, ast.expr):
        return
    if not looping:
        yield ast.Constant(True)
    yield ast.Constant(False)
    if not isinstance(spot.node, ast.Compare | ast.UnaryOp | ast.Constant):
        yield _negated(spot.node)


def _changes(tree: ast.Module) -> Iterator[tuple[int, _Spot, ast.AST]]:
    """Number all changes of a module."""
    number = 0
    for spot in _spots(tree):
        for makers in (_of_expression(spot.node), _of_statement(spot.node), _of_test(spot)):
            for other in makers:
                yield number, spot, other
                number += 1


def _shown(node: ast.AST) -> str:
    return " ".join(ast.unparse(ast.fix_missing_locations(node)).split())


def _texts(spot: _Spot, other: ast.AST) -> tuple[str, str]:
    """Return the change in the largest piece of its statement that fits on a line."""
    for piece in spot.around:
        if not isinstance(piece, ast.expr | ast.stmt) or hasattr(piece, "body"):
            continue
        before = _shown(piece)
        if len(before) > _TEXT_MAX:
            continue
        if piece is spot.node:
            return before, _shown(other)
        spot.hang(other)
        after = _shown(piece)
        spot.hang(spot.node)
        return before, after
    return _shown(spot.node)[:_TEXT_MAX], _shown(other)[:_TEXT_MAX]


def _lines(spot: _Spot) -> tuple[int, int]:
    line = getattr(spot.node, "lineno", 0)
    statement = spot.around[0] if spot.around else spot.node
    first = getattr(statement, "lineno", line)
    if hasattr(statement, "body"):
        return min(first, line), getattr(spot.node, "end_lineno", None) or line
    return first, getattr(statement, "end_lineno", None) or line


def mutations(source: str) -> list[Mutation]:
    """Return all changes of a module that are tried."""
    changes = _changes(ast.parse(source))
    return [Mutation(*each) for each in changes if hasattr(each[1].node, "lineno")]


def mutated(source: str, number: int) -> ast.Module:
    """Return the tree of a module with the change of this number made."""
    tree = ast.parse(source)
    for each, spot, other in _changes(tree):
        if each == number:
            if isinstance(spot.node, ast.expr | ast.stmt):
                ast.copy_location(other, spot.node)
            spot.hang(other)
            return ast.fix_missing_locations(tree)
    raise ValueError(f"there is no change {number}; there are {each + 1}")
