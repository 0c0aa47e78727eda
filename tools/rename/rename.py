# ruff: noqa
"""Type-aware renames through pyright's language server.

python tools/rename/rename.py ROOT MAP.tsv     each line: path<TAB>qualified.name<TAB>new_name
qualified.name: func | Class | Class.method | Class.attr (class-level or self.attr) | CONST | func(param) | Class.method(param)
"""

import ast, json, os, shutil, subprocess, sys, threading, time
from pathlib import Path
from urllib.parse import unquote, urlparse

ROOT = Path(sys.argv[1]).resolve()


class Server:
    def __init__(self):
        self.p = subprocess.Popen(
            [shutil.which("pyright-langserver") or "node_modules/.bin/pyright-langserver", "--stdio"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        self.id = 0
        self.answers = {}
        self.cv = threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        out = self.p.stdout
        while True:
            n = None
            while True:
                line = out.readline()
                if not line:
                    return
                line = line.strip()
                if not line:
                    break
                if line.lower().startswith(b"content-length:"):
                    n = int(line.split(b":")[1])
            m = json.loads(out.read(n))
            if "id" in m and "method" in m:
                r = None
                if m["method"] == "workspace/configuration":
                    r = [
                        {
                            "analysis": {
                                "diagnosticMode": "workspace",
                                "indexing": True,
                                "useLibraryCodeForTypes": True,
                            },
                            "pythonPath": sys.executable,
                        }
                        if True
                        else None
                        for _ in m["params"]["items"]
                    ]
                self.write({"jsonrpc": "2.0", "id": m["id"], "result": r})
            elif "id" in m:
                with self.cv:
                    self.answers[m["id"]] = m
                    self.cv.notify_all()

    def write(self, m):
        b = json.dumps(m).encode()
        self.p.stdin.write(b"Content-Length: %d\r\n\r\n" % len(b) + b)
        self.p.stdin.flush()

    def notify(self, method, params):
        self.write({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method, params, timeout=300):
        self.id += 1
        i = self.id
        self.write({"jsonrpc": "2.0", "id": i, "method": method, "params": params})
        with self.cv:
            if not self.cv.wait_for(lambda: i in self.answers, timeout):
                raise TimeoutError(method)
            return self.answers.pop(i)


def uri(p):
    return Path(p).resolve().as_uri()


def locate(path, qual):
    text = (ROOT / path).read_text()
    tree = ast.parse(text)
    lines = text.splitlines()
    param = None
    if qual.endswith(")"):
        qual, param = qual[:-1].split("(")
    parts = qual.split(".")
    node = tree

    def col_of(line, name, start=0):
        import re

        m = re.search(r"\b%s\b" % re.escape(name), lines[line][start:])
        assert m, (path, qual, lines[line])
        return start + m.start()

    for k, part in enumerate(parts):
        found = None
        for child in ast.walk(node) if not isinstance(node, ast.ClassDef) and node is not tree else node.body:
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and child.name == part:
                found = ("def", child)
                break
            if isinstance(child, ast.Assign):
                names = [t for t in child.targets for t in ast.walk(t) if isinstance(t, ast.Name) and t.id == part]
                if names:
                    found = ("name", names[0])
                    break
            if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name) and child.target.id == part:
                found = ("name", child.target)
                break
        if found is None and isinstance(node, ast.ClassDef):
            for child in ast.walk(node):
                if (
                    isinstance(child, ast.Attribute)
                    and isinstance(child.ctx, ast.Store)
                    and isinstance(child.value, ast.Name)
                    and child.value.id == "self"
                    and child.attr == part
                ):
                    return child.end_lineno - 1, child.end_col_offset - len(part)
        if found is None:  # nested or conditional
            for child in ast.walk(node):
                if isinstance(child, (ast.FunctionDef, ast.ClassDef)) and child.name == part:
                    found = ("def", child)
                    break
                if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store) and child.id == part:
                    found = ("name", child)
                    break
        if found is None:
            raise KeyError(f"{path}: {qual}")
        kind, node = found
    if param:
        a = node.args
        for arg in [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]:
            if arg is not None and arg.arg == param:
                return arg.lineno - 1, arg.col_offset
        raise KeyError(f"{path}: {qual}({param})")
    if kind == "def":
        line = node.lineno - 1
        return line, col_of(line, node.name, node.col_offset)
    return node.lineno - 1, node.col_offset


def apply(edit):
    changes = {}
    for u, es in (edit.get("changes") or {}).items():
        changes.setdefault(u, []).extend(es)
    for d in edit.get("documentChanges") or []:
        if "edits" in d:
            changes.setdefault(d["textDocument"]["uri"], []).extend(d["edits"])
    files = []
    for u, es in changes.items():
        p = Path(unquote(urlparse(u).path))
        if ROOT not in p.parents:
            print("  outside:", p)
            continue
        lines = p.read_text().split("\n")
        seen = set()
        for e in sorted(
            es, key=lambda e: (e["range"]["start"]["line"], e["range"]["start"]["character"]), reverse=True
        ):
            s, t = e["range"]["start"], e["range"]["end"]
            key = (s["line"], s["character"])
            if key in seen:
                continue
            seen.add(key)
            assert s["line"] == t["line"]
            # LSP counts UTF-16 units; our sources are in the BMP
            l = lines[s["line"]]
            lines[s["line"]] = l[: s["character"]] + e["newText"] + l[t["character"] :]
        p.write_text("\n".join(lines))
        files.append(p)
    return files, sum(len(e) for e in changes.values())


def main():
    srv = Server()
    srv.ask(
        "initialize",
        {
            "processId": os.getpid(),
            "rootUri": uri(ROOT),
            "workspaceFolders": [{"uri": uri(ROOT), "name": "r"}],
            "capabilities": {
                "workspace": {
                    "configuration": True,
                    "workspaceFolders": True,
                    "didChangeWatchedFiles": {"dynamicRegistration": True},
                    "workspaceEdit": {"documentChanges": True},
                },
                "textDocument": {"rename": {"prepareSupport": True}},
            },
        },
    )
    srv.notify("initialized", {})
    srv.notify("workspace/didChangeConfiguration", {"settings": {}})
    bad = 0
    versions = {}
    opened = {}

    def open_(p):
        t = p.read_text()
        if p in opened:
            versions[p] += 1
            srv.notify(
                "textDocument/didChange",
                {"textDocument": {"uri": uri(p), "version": versions[p]}, "contentChanges": [{"text": t}]},
            )
        else:
            versions[p] = 1
            opened[p] = t
            srv.notify(
                "textDocument/didOpen",
                {"textDocument": {"uri": uri(p), "languageId": "python", "version": 1, "text": t}},
            )

    all_py = [
        p
        for d in ("src", "tests", "quality", "benchmarks", "experiments", "examples", "tools")
        for p in sorted((ROOT / d).rglob("*.py"))
    ] + [ROOT / "conftest.py"]
    for p in all_py:
        open_(p)
    for raw in Path(sys.argv[2]).read_text().splitlines():
        if not raw.strip() or raw.startswith("#"):
            continue
        path, qual, new = raw.split("\t")[:3]
        try:
            line, col = locate(path, qual)
            t0 = time.time()
            # LSP character offset in UTF-16; ast gives UTF-8 bytes
            text = (ROOT / path).read_text().splitlines()[line]
            col = len(text.encode()[:col].decode())
            r = srv.ask(
                "textDocument/rename",
                {
                    "textDocument": {"uri": uri(ROOT / path)},
                    "position": {"line": line, "character": col},
                    "newName": new,
                },
            )
            if not r.get("result"):
                raise RuntimeError(r.get("error") or "no edits")
            files, n = apply(r["result"])
            for f in files:
                open_(f)
            print(f"{path} {qual} -> {new}: {n} edits in {len(files)} files ({time.time() - t0:.1f} s)", flush=True)
        except Exception as e:
            bad += 1
            print(f"FAILED {raw}: {type(e).__name__} {e}", flush=True)
    print("failed:", bad)
    srv.p.kill()


main()
