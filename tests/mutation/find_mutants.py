"""Finds places in C++ sources where a small change of meaning can be made, with libclang.

A mutant is an edit of one place: the text there is replaced by an expression or a statement that holds
both meanings and asks ds::mutation::on(NUMBER) which one is wanted. So all mutants share one build.
"""
import collections
import concurrent.futures
import dataclasses
import hashlib
import json
import pathlib
import re
import shlex

from clang import cindex

import equivalent_list

K = cindex.CursorKind

RELATIONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
ARITHMETIC = {"+": "-", "-": "+", "*": "+", "/": "*", "%": "*"}
LOGIC = {"&&": "||", "||": "&&"}
ASSIGNMENTS = {"+=": "-=", "-=": "+=", "*=": "/=", "|=": "&=", "&=": "|="}
FUNCTIONS = {K.FUNCTION_DECL, K.CXX_METHOD, K.CONSTRUCTOR, K.FUNCTION_TEMPLATE, K.DESTRUCTOR,
             K.CONVERSION_FUNCTION}
# What must stay constant or has no meaning of its own at run time.
CLOSED = {K.STATIC_ASSERT, K.ENUM_DECL, K.TEMPLATE_TYPE_PARAMETER, K.TEMPLATE_NON_TYPE_PARAMETER,
          K.TYPE_ALIAS_DECL, K.TYPEDEF_DECL, K.FIELD_DECL}
# Calls whose arguments nobody can see the effect of: the size of a buffer that grows anyway.
SIZES = {"reserve", "shrink_to_fit"}
# Calls whose arguments are the words of a message. That they are called is a mutant; what they say is not.
MESSAGES = {"fail", "printable"}
ARITHMETIC_TYPES = {
    getattr(cindex.TypeKind, name) for name in
    ("BOOL", "CHAR_U", "UCHAR", "USHORT", "UINT", "ULONG", "ULONGLONG", "CHAR_S", "SCHAR", "SHORT",
     "INT", "LONG", "LONGLONG", "FLOAT", "DOUBLE")}


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str       # relative to the root
    line: int
    start: int      # bytes of the place in the file
    end: int
    what: str       # for people
    text: str       # the new text, with @ where the number goes
    source: str     # the line that it is in
    nth: int = 0    # among those of the same file, change and line

    def place(self):
        """The same in another run, as long as the line does not change."""
        return (self.file, self.what, self.source, self.nth)

    def name(self):
        return f"{self.file}:{self.line}: {self.what}"


def arithmetic(cursor):
    return cursor.type.get_canonical().kind in ARITHMETIC_TYPES


class Finder:
    def __init__(self, root, file, translation_unit):
        self.file = str(file.relative_to(root))
        self.path = str(file)
        self.source = file.read_bytes()
        self.found = []
        for cursor in translation_unit.cursor.get_children():
            if cursor.location.file and cursor.location.file.name == self.path:
                self.visit(cursor, False)

    def text(self, start, end):
        return self.source[start:end].decode()

    def add(self, cursor, start, end, what, text):
        # A macro's cursor has the extent of its call; there the text is not what the tree says.
        if 0 <= start < end:
            line = self.source[self.source.rfind(b"\n", 0, start) + 1:].split(b"\n", 1)[0].decode().strip()
            self.found.append(Mutant(self.file, cursor.extent.start.line, start, end, what, text, line))

    def visit(self, cursor, inside):
        kind = cursor.kind
        if kind in CLOSED or (kind == K.VAR_DECL and self.constant(cursor, inside)):
            return
        if kind in FUNCTIONS:
            if self.is_constexpr(cursor):
                return
            inside = True
        if kind == K.CALL_EXPR and cursor.spelling in SIZES | MESSAGES:
            return
        if kind == K.CASE_STMT:
            for child in list(cursor.get_children())[1:]:
                self.visit(child, inside)
            return
        if inside or kind == K.LAMBDA_EXPR:
            inside = True
            self.consider(cursor)
        for child in cursor.get_children():
            self.visit(child, inside)

    def constant(self, cursor, inside):
        head = self.text(cursor.extent.start.offset, cursor.location.offset)
        return "constexpr" in head or (not inside and "(" not in head and cursor.type.is_const_qualified()
                                       and arithmetic(cursor))

    def is_constexpr(self, cursor):
        head = self.text(cursor.extent.start.offset, cursor.location.offset)
        return "constexpr" in head or "consteval" in head

    def consider(self, cursor):
        kind = cursor.kind
        if kind == K.BINARY_OPERATOR:
            self.binary(cursor)
        elif kind == K.COMPOUND_ASSIGNMENT_OPERATOR:
            self.assignment(cursor)
        elif kind in (K.IF_STMT, K.WHILE_STMT):
            self.condition(cursor)
        elif kind == K.INTEGER_LITERAL:
            self.integer(cursor)
        elif kind == K.CXX_BOOL_LITERAL_EXPR:
            self.boolean(cursor)
        elif kind == K.COMPOUND_STMT:
            for child in cursor.get_children():
                self.statement(child)

    def operands(self, cursor):
        left, right = list(cursor.get_children())
        start, end = cursor.extent.start.offset, cursor.extent.end.offset
        a, b = left.extent.end.offset, right.extent.start.offset
        return left, right, start, end, a, b

    def binary(self, cursor):
        left, right, start, end, a, b = self.operands(cursor)
        operator = self.text(a, b).strip()
        other = RELATIONS.get(operator) or LOGIC.get(operator)
        if operator in ARITHMETIC and arithmetic(left) and arithmetic(right):
            other = ARITHMETIC[operator]
        if not other:
            return
        before, after = self.text(start, a), self.text(b, end)
        self.add(cursor, start, end, f"{operator} becomes {other}",
                 f"(::ds::mutation::on(@) ? ({before} {other} {after}) : ({before} {operator} {after}))")

    def assignment(self, cursor):
        left, right, start, end, a, b = self.operands(cursor)
        operator = self.text(a, b).strip()
        if operator in ASSIGNMENTS and arithmetic(left) and arithmetic(right):
            before, after = self.text(start, a), self.text(b, end)
            other = ASSIGNMENTS[operator]
            self.add(cursor, start, end, f"{operator} becomes {other}",
                     f"(::ds::mutation::on(@) ? ({before} {other} {after}) : ({before} {operator} {after}))")

    def condition(self, cursor):
        children = list(cursor.get_children())
        if not children or children[0].kind in (K.DECL_STMT, K.VAR_DECL):
            return
        head = children[0]
        start, end = head.extent.start.offset, head.extent.end.offset
        between = self.text(cursor.extent.start.offset, start)
        if not re.fullmatch(r"(if|while)\s*\(\s*", between):
            return  # if constexpr, an initialiser, a macro
        text = self.text(start, end)
        kinds = ("false",) if cursor.kind == K.WHILE_STMT else ("false", "true")
        for value in kinds:
            self.add(cursor, start, end, f"condition `{text[:50]}` is {value}",
                     f"(::ds::mutation::on(@) ? {value} : static_cast<bool>({text}))")

    def integer(self, cursor):
        start, end = cursor.extent.start.offset, cursor.extent.end.offset
        text = self.text(start, end)
        if re.fullmatch(r"[0-9]+[uUlLzZ]*", text):
            self.add(cursor, start, end, f"{text} becomes {text} + 1",
                     f"(::ds::mutation::on(@) ? {text} + 1 : {text})")

    def boolean(self, cursor):
        start, end = cursor.extent.start.offset, cursor.extent.end.offset
        text = self.text(start, end)
        other = {"true": "false", "false": "true"}.get(text)
        if other:
            self.add(cursor, start, end, f"{text} becomes {other}",
                     f"(::ds::mutation::on(@) ? {other} : {text})")

    def statement(self, cursor):
        if cursor.kind not in (K.CALL_EXPR, K.BINARY_OPERATOR, K.COMPOUND_ASSIGNMENT_OPERATOR,
                               K.UNARY_OPERATOR, K.CXX_DELETE_EXPR, K.CXX_THROW_EXPR):
            return
        if cursor.kind == K.CALL_EXPR and cursor.spelling in SIZES:
            return
        start, end = cursor.extent.start.offset, cursor.extent.end.offset
        text = self.text(start, end)
        line = " ".join(text.split())
        if self.source[end:end + 1] == b";":
            self.add(cursor, start, end + 1, f"without `{line[:60]}`",
                     f"if (!::ds::mutation::on(@)) {{ {text}; }}")


def clang_arguments(command):
    words = shlex.split(command)
    first = next(i for i, word in enumerate(words) if re.search(r"(c\+\+|g\+\+|clang\+\+)[-0-9.]*$", word))
    kept, skip = [], False
    for word in words[first + 1:]:
        if skip:
            skip = False
        elif word in ("-o", "-c"):
            skip = word == "-o"
        elif not word.endswith(".cc"):
            kept.append(word)
    return kept + ["-w"]


def equivalent(found, list_of_them):
    """Those that the list names: they change nothing that can be seen, and their line there says why."""
    by_entry = collections.defaultdict(list)
    for mutant in found:
        by_entry[mutant.file, mutant.what, mutant.source].append(mutant)
    files = {mutant.file for mutant in found}
    out = set()
    for number, file, what, source in equivalent_list.entries(list_of_them):
        meant = by_entry[file, what, source]
        if file in files and not meant:
            raise SystemExit(f"mutation: {list_of_them}:{number}: there is no such mutant any more")
        out.update(meant)
    return out


def numbered(found):
    """Each once (a header's cursor or a template may be met twice), and counted where the words are the same."""
    seen = collections.Counter()
    out = []
    for mutant in dict.fromkeys(found):
        words = (mutant.file, mutant.what, mutant.source)
        out.append(dataclasses.replace(mutant, nth=seen[words]))
        seen[words] += 1
    return out


def digest(*parts):
    total = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, pathlib.Path) else part.encode()
        total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()


def find_in(root, file, command, cache):
    """Mutants of one source: from the cache while it, its command and the headers of the checkout are the same."""
    kept = cache / (str(file.relative_to(root)).replace("/", "_") + ".json")
    tool = pathlib.Path(__file__)
    if kept.exists():
        old = json.loads(kept.read_text())
        read = [root / name for name in old["read"]]
        if all(path.exists() for path in read) and old["digest"] == digest(command, tool, *read):
            return [Mutant(**fields) for fields in old["found"]]
    unit = cindex.Index.create().parse(str(file), args=clang_arguments(command))
    # Lesser errors are C++20 that this libclang does not know yet; they cost the statement they are in.
    errors = [d for d in unit.diagnostics if d.severity == cindex.Diagnostic.Fatal]
    if errors:
        raise SystemExit(f"mutation: libclang cannot read {file}: {errors[0].spelling}")
    found = numbered(Finder(root, file, unit).found)
    headers = {pathlib.Path(include.include.name).resolve() for include in unit.get_includes()}
    read = [file, *sorted(path for path in headers if path.is_relative_to(root))]
    kept.write_text(json.dumps({"digest": digest(command, tool, *read),
                                "read": [str(path.relative_to(root)) for path in read],
                                "found": [dataclasses.asdict(mutant) for mutant in found]}))
    return found


def find(root, build, wanted, cache, jobs):
    """Mutants of every source for whose name `wanted` holds, in the order of files and places."""
    root = pathlib.Path(root).resolve()
    cache.mkdir(parents=True, exist_ok=True)
    commands = json.loads((pathlib.Path(build) / "compile_commands.json").read_text())
    sources = {}
    for entry in sorted(commands, key=lambda e: e["file"]):
        file = pathlib.Path(entry["file"])
        # Programs that only the build runs are not tried.
        if file.is_relative_to(root) and not file.name.endswith("_main.cc") and wanted(str(file.relative_to(root))):
            sources[file] = entry["command"]
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        parts = pool.map(find_in, [root] * len(sources), sources, sources.values(), [cache] * len(sources))
        return [mutant for part in parts for mutant in part]
