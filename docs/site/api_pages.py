"""Pages of the C API from doxygen's XML: one per header, with the declarations of Sphinx's C domain,
so that every function, struct, constant and type can be searched for and linked to."""
import pathlib
import re
import xml.etree.ElementTree as ElementTree

from header_filter import filtered

# Words that begin a sentence of rules in the header's comments.
LABELS = re.compile(r"\b(Errors|Threads|Since|Ownership|Blocks):")
IDENTIFIER = re.compile(r"\b(?:libds::)?((?:ds|DS)_[A-Za-z0-9_]+)(\(\))?(\.[a-z_]+(?!\w))?")
# Marks of the header that are no C.
MARKS = re.compile(r"\s*\b(?:DS_NULLABLE|DS_EXPERIMENTAL|DS_API|DS_DEPRECATED\([^)]*\))(?= |\)|,|$|\*)\s*")
SECTION = re.compile(r"^/\* -{2,} (?:\d+\. )?(.+?) -{2,} \*/$")
# Macros that are no part of what a program uses.
HIDDEN_MACROS = re.compile(r"_H$|_HPP$|^DS_API$|^DS_STATIC_ASSERT")
ROLES = {"function": "func", "struct": "struct", "enum": "enum", "enumvalue": "enumerator",
         "typedef": "type", "define": "macro", "handle": "type"}


class Entry:
    """Something that a header declares: what it is, and where its description is in the XML."""
    def __init__(self, kind, name, node, line, declaration):
        self.kind, self.name, self.node, self.line = kind, name, node, line
        self.declaration = declaration


class Api:
    """What doxygen found in the headers. `names` maps each name to its role."""
    def __init__(self, xml, include):
        self.include = include
        self.names, self.files, self.structs = {}, {}, {}
        self.nodes = {}  # of the headers
        index = ElementTree.parse(xml / "index.xml").getroot()
        for compound in index.findall("compound"):
            node = ElementTree.parse(xml / f"{compound.get('refid')}.xml").find("compounddef")
            if node.get("kind") in ("struct", "union"):
                self.structs[node.findtext("compoundname")] = node
        for compound in index.findall("compound"):
            if compound.get("kind") != "file":
                continue
            node = ElementTree.parse(xml / f"{compound.get('refid')}.xml").find("compounddef")
            path = pathlib.Path(node.find("location").get("file"))
            if path.suffix == ".h":
                self.nodes[self._relative(path)] = node
                self.files[self._relative(path)] = self._entries(node, path)

    def _relative(self, path):
        """"ds/engine.h" of "include/ds/engine.h"."""
        return (self.include.parent / path).resolve().relative_to(self.include.resolve()).as_posix()

    def _entries(self, file_node, path):
        entries = []
        for inner in file_node.findall("innerclass"):
            node = self.structs[inner.text]
            if self._relative(pathlib.Path(node.find("location").get("file"))) == \
                    self._relative(path) and described(node):
                entries.append(Entry("struct", inner.text, node, line_of(node), inner.text))
        structs = {entry.name for entry in entries}
        for member in file_node.iter("memberdef"):
            entry = self._entry(member, structs)
            if entry:
                entries.append(entry)
        for entry in entries:
            self.names[entry.name] = ROLES[entry.kind]
            if entry.kind == "enum":
                for value in entry.node.findall("enumvalue"):
                    self.names[value.findtext("name")] = ROLES["enumvalue"]
        return sorted(entries, key=lambda entry: entry.line)

    @staticmethod
    def _entry(member, structs):
        kind, name = member.get("kind"), member.findtext("name")
        declaration = declared(member)
        if kind == "define":
            if HIDDEN_MACROS.search(name):
                return None
            parameters = [p.findtext("defname") for p in member.findall("param")]
            declaration = name + (f"({', '.join(parameters)})" if parameters else "")
        elif kind == "typedef":
            if name in structs:
                return None  # typedef struct x {...} x: one thing
            if re.fullmatch(rf"struct {name}", text_of(member.find("type"))):
                kind, declaration = "handle", name
        elif kind == "enum":
            declaration = name
        elif kind != "function":
            return None
        return Entry(kind, name, member, line_of(member), declaration)

    # ---- Descriptions as Markdown ----

    def text(self, text):
        """Plain text, with names of the API as links."""
        out, at = [], 0
        for found in IDENTIFIER.finditer(text):
            out.append(escaped(text[at:found.start()]))
            out.append(self.name(found))
            at = found.end()
        out.append(escaped(text[at:]))
        return LABELS.sub(r"**\1:**", "".join(out))

    def name(self, found):
        name, call, member = found.group(1), found.group(2) or "", found.group(3) or ""
        role = self.names.get(name)
        if role is None or found.group(0).startswith("libds::"):
            return f"`{found.group(0)}`"
        if member and role == "struct":
            return f"{{c:struct}}`{name}`" + f"`{member}`"
        return f"{{c:{role}}}`{name}`" + member

    def inline(self, node):
        out = [self.text(node.text or "")]
        for child in node:
            out.append(self.element(child))
            out.append(self.text(child.tail or ""))
        return re.sub(r"\s+", " ", "".join(out)).strip(" ") if node.tag == "para" else "".join(out)

    def element(self, node):
        if node.tag in ("ref", "anchor", "sp", "linebreak"):
            return self.text("".join(node.itertext())) or " "
        if node.tag == "computeroutput":
            code = "".join(node.itertext())
            found = IDENTIFIER.fullmatch(code)
            return self.name(found) if found else f"`{code}`"
        if node.tag in ("bold", "emphasis"):
            mark = {"bold": "**", "emphasis": "*"}[node.tag]
            return mark + self.inline(node).strip() + mark
        if node.tag == "ulink":
            return f"<{node.get('url')}>"
        if node.tag in ("ndash", "mdash"):
            return "–"
        raise ValueError(f"a description holds <{node.tag}>, which docs/site/api_pages.py does not "
                         "know")

    def blocks(self, node):
        """The paragraphs, lists and fields of a description, each as lines of Markdown."""
        if node is None:
            return []
        out = []
        for para in node:
            if para.tag != "para":
                raise ValueError(f"a description holds <{para.tag}>")
            rest = ElementTree.Element("para")
            rest.text = para.text

            def flush():
                nonlocal rest
                text = self.inline(rest)
                if text:
                    out.append(text)
                rest = ElementTree.Element("para")

            for child in para:
                if child.tag in ("parameterlist", "simplesect", "itemizedlist", "orderedlist",
                                 "verbatim", "preformatted", "programlisting"):
                    flush()
                    out.extend(self.block(child))
                    rest.text = child.tail
                else:
                    rest.append(child)
            flush()
        return out

    def block(self, node):
        if node.tag == "parameterlist":
            fields = []
            for item in node.findall("parameteritem"):
                names = ",".join(name.text for name in item.iter("parametername"))
                text = " ".join(self.blocks(item.find("parameterdescription")))
                # "@param a, b text" is about both.
                fields += [f":param {name}: {text}" for name in re.split(r"[,\s]+", names) if name]
            return ["\n".join(fields)]
        if node.tag == "simplesect":
            text = " ".join(self.blocks(node))
            return [f":returns: {text}" if node.get("kind") == "return" else text]
        if node.tag in ("itemizedlist", "orderedlist"):
            mark = "* " if node.tag == "itemizedlist" else "1. "
            return ["\n".join(mark + " ".join(self.blocks(item)) for item in node.findall("listitem"))]
        text = "".join(node.itertext()).strip("\n")
        return [f"```c\n{text}\n```"]

    def description(self, node):
        blocks = self.blocks(node.find("briefdescription")) + \
            self.blocks(node.find("detaileddescription"))
        # Fields come last: what follows a list of parameters in the comment is about the whole.
        fields = [block for block in blocks if block.startswith((":param", ":returns"))]
        if names := nullable(node):
            fields.insert(0, "**May be NULL:** " + ", ".join(f"`{name}`" for name in names) + "\n")
        return [block for block in blocks if block not in fields] + \
            (["\n".join(fields)] if fields else [])

    # ---- Pages ----

    def directive(self, kind, declaration, blocks, colons=3, inner=()):
        fence = ":" * colons
        body = "\n\n".join([*blocks, *inner])
        return f"{fence}{{c:{kind}}} {declaration}\n\n{body}\n{fence}"

    def entry(self, entry):
        blocks, inner = self.description(entry.node), []
        kind = {"handle": "type", "typedef": "type", "define": "macro"}.get(entry.kind, entry.kind)
        if entry.kind == "enum":
            for value in entry.node.findall("enumvalue"):
                number = (value.findtext("initializer") or "").removeprefix("=").strip()
                name = value.findtext("name")
                inner.append(self.directive("enumerator", f"{name} = {number}" if number else name,
                                            self.description(value)))
        elif entry.kind == "struct":
            for member in entry.node.iter("memberdef"):
                inner.append(self.directive("member", declared(member), self.description(member)))
        elif entry.kind == "define":
            value = text_of(entry.node.find("initializer"))
            if value:
                blocks.append(f"Value: `{value}`")
        return self.directive(kind, entry.declaration, blocks, 4 if inner else 3, inner)

    def sections(self, header):
        """The titles of a header's sections by the line that they begin in."""
        found = {}
        text = filtered((self.include / header).read_text())
        for number, line in enumerate(text.splitlines(), 1):
            if match := SECTION.match(line):
                found[number] = match.group(1)
        return found

    def page(self, header):
        entries = self.files[header]
        out = [f"# {header}", *self.description(self.nodes[header])]
        sections, last = self.sections(header), None
        for entry in entries:
            before = [line for line in sections if line < entry.line]
            if before and before[-1] != last:
                last = before[-1]
                out.append(f"## {sections[last]}")
            out.append(self.entry(entry))
        return "\n\n".join(out) + "\n"


def line_of(node):
    return int(node.find("location").get("line"))


def described(node):
    return any("".join(node.find(tag).itertext()).strip()
               for tag in ("briefdescription", "detaileddescription"))


def text_of(node):
    return re.sub(r"\s+", " ", "".join(node.itertext())).strip() if node is not None else ""


def declared(member):
    """A function, typedef or struct member as C writes it."""
    kind, name = text_of(member.find("type")), member.findtext("name")
    arguments = re.sub(r"\s+", " ", member.findtext("argsstring") or "")
    kind, arguments = unmarked(kind), unmarked(arguments)
    if kind.endswith("*)") or "(*" in kind:  # a pointer to a function
        return f"{kind}{name}{arguments}"
    return f"{kind} {name}{arguments}"


def unmarked(text):
    return MARKS.sub(" ", text).strip()


def nullable(member):
    """What may be NULL: parameters of a function, or a struct's member itself."""
    parameters = [(p.find("type"), p.findtext("declname")) for p in member.findall("param")]
    return [name for kind, name in [*parameters, (member.find("type"), member.findtext("name"))]
            if "DS_NULLABLE" in text_of(kind)]


def escaped(text):
    return re.sub(r"([\\`*<>\[\]{}|$])", r"\\\1", text)
