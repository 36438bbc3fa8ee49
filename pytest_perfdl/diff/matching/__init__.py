"""Which operators and kernels of one step are which of another, where builds, devices and compilers rename them.

    matching = match.match(base, new)

`groups` holds the words, `match` tells the story, and each of its chapters is a file: `same_name`, `same_operator`,
`order` and `fusion`; `matched` sees to it that every part is entered once. What they go by: `names` and `cpp_names`
say what a name is without what changes from build to build, `compilers` what a compiler's names say of what they
replace, `normalized` is a part as it is compared, `likeness` how much speaks against two parts being one.

Pure functions of the parts alone: deterministic, and the same whichever side is called the baseline.
"""
