"""A repository as GitHub has it, with a pull request, and clones as jobs make them."""

import os
import subprocess


def git(folder, *arguments):
    """Run git; what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    author = {f"GIT_{who}_{what}": "x@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env={**environment, **author}, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def commit(folder, message):
    """Commit a change; its hash."""
    (folder / "code.py").write_text(f"# {message}\n")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def checkout(hosted, folder, revision, *, depth=1):
    """Clone as actions/checkout does: one commit, detached, without branches."""
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "remote", "add", "origin", f"file://{hosted}")
    deep = (f"--depth={depth}",) if depth else ()
    git(folder, "fetch", "--quiet", "--no-tags", *deep, "origin", f"+{revision}:refs/remotes/pull/7/merge")
    git(folder, "checkout", "--quiet", "--detach", "refs/remotes/pull/7/merge")
    return folder


class Hosted:
    """main has commits, a pull request branches off, main goes on; GitHub's merge of both is refs/pull/7/merge."""

    def __init__(self, folder, *, before=3, since=2, after=2):
        self.folder = folder
        folder.mkdir(parents=True)
        git(folder, "init", "--quiet", "--initial-branch=main")
        self.main = [commit(folder, f"main {number}") for number in range(before)]
        git(folder, "switch", "--quiet", "--create", "feature")
        (folder / "feature.py").write_text("x = 1\n")
        self.feature = [commit(folder, f"feature {number}") for number in range(since)]
        git(folder, "switch", "--quiet", "main")
        git(folder, "switch", "--quiet", "--create", "merging")
        git(folder, "merge", "--quiet", "--no-ff", "--strategy-option=ours", "-m", "Merge", "feature")
        self.merge = git(folder, "rev-parse", "HEAD")
        git(folder, "update-ref", "refs/pull/7/merge", self.merge)
        git(folder, "switch", "--quiet", "main")
        git(folder, "branch", "--quiet", "-D", "merging")
        self.left = self.main[-1]
        """Where the pull request has left main, and what the merge is into."""
        self.main += [commit(folder, f"later {number}") for number in range(after)]
        git(folder, "tag", "v1.0", self.main[0])

    def checkout(self, folder, revision, *, depth=1):
        """A clone as a job has it."""
        return checkout(self.folder, folder, revision, depth=depth)
