"""Native code that decodes rows of chunks of images (see `stores.tiles` for the format).

The loops are C++, because the compiler vectorises them: a Warp kernel with indexed arrays takes ten times longer (measured).
Nothing outside a chunk and its `AHEAD` bytes is read, whatever the chunk contains, so chunks need not be trusted.
"""
# mypy: ignore-errors

from __future__ import annotations

import warp as wp

from fledge.core.warp_start import start_warp

wp.set_module_options({"enable_backward": False})
start_warp()

MAX_STACK = 16  # planes of a frame

COMMON = """
    const long long* const table_ = (const long long*)table;
    const int outer = table_[0], stack = table_[1], unit = table_[2], word = table_[3], above = table_[4];
    const long long jobs = table_[5], scratch = table_[6];
    typedef unsigned char u8;
    typedef unsigned int u32;
    typedef unsigned long long u64;
    typedef u32 __attribute__((aligned(1), may_alias)) any32;
    typedef u64 __attribute__((aligned(1), may_alias)) any64;
    enum { ABOVE = 0, REFERENCE = 1, SOME = 128 };
    const int cells = outer * unit, padded = (cells + 63) / 64 * 64, tiles = padded / 64;
    const int marks = (tiles + 7) / 8, tops = (marks + 7) / 8;
"""

# `scratch` keeps the planes of the last frames: [chunk, plane in each slot ...] int64, the reference, then the slots. Plane p
# is in slot p % stack, so a frame that follows in the same chunk decodes one plane.
_DECODE = """
    const long long* const job = (const long long*)jobs + 5 * item;
    const long long out = table_[7], good = table_[8];
    const u8* const chunk = (const u8*)job[0];
    const long long size = job[1], rows = job[2], row = job[3];
    auto decode = [&](auto zero) -> bool {
        using T = decltype(zero);
        const long long listed = stack > 1 ? rows : 0;
        if (size < 2 + listed) return false;
        const bool binary = chunk[0];
        const int given = chunk[1];
        if (chunk[0] > 1 || given > 1) return false;
        long long planes = given, last = 0;
        for (long long r = 0; r < rows; ++r) {
            planes += listed ? chunk[2 + r] : 1;
            if (r == row) last = planes - 1;
        }
        const u8* const ends = chunk + 2 + listed;
        const long long data = 2 + listed + 4 * planes;
        const long long first = last - stack + 1;
        if (size < data || first < given) return false;
        auto begin_of = [=](long long plane) -> long long {
            return plane ? (long long)*(const any32*)(ends + 4 * (plane - 1)) : data;
        };
        auto change = [=](const u8* p, const u8* const stop, T* __restrict__ w) -> bool {
            const u8* const top = p;
            if (stop - p < tops) return false;
            int seconds = 0;
            for (int i = 0; i < tops; ++i) seconds += __builtin_popcount(top[i]);
            const u8* second = p + tops;
            p = second + seconds;
            if (p > stop) return false;
            for (int i = 0; i < tops; ++i)
                for (u32 high = top[i]; high; high &= high - 1) {
                    const int byte = 8 * i + __builtin_ctz(high);
                    for (u32 low = *second++; low; low &= low - 1) {
                        const int tile = 8 * byte + __builtin_ctz(low);
                        if (tile >= tiles || stop - p < 2) return false;
                        T* const cell = w + 64 * tile;
                        const u32 how = binary ? (u32)SOME : *p++, width = how & 127;
                        if (!how || width > 8 * sizeof(T) || stop - p < 8 * width) return false;
                        for (u32 g = 0; g < 8 && width; ++g, p += width) {  // eight codes take `width` bytes
                            T code[8];
                            if (sizeof(T) == 1) {  // byte b has bit b of each code
                                u64 eight = 0;
                                for (u32 b = 0; b < width; ++b) {
                                    const u64 apart = p[b] * 0x0101010101010101ull & 0x8040201008040201ull;
                                    eight |= (((apart + 0x7F7F7F7F7F7F7F7Full) >> 7) & 0x0101010101010101ull) << b;
                                }
                                __builtin_memcpy(code, &eight, 8);
                            } else {
                                const u64 ones = ~0ull >> (64 - width);
                                for (u32 j = 0; j < 8; ++j)
                                    code[j] = (T)(*(const any64*)(p + (j * width >> 3)) >> (j * width & 7) & ones);
                            }
                            for (u32 j = 0; j < 8; ++j) cell[8 * g + j] += (T)(code[j] >> 1) ^ (T)(0 - (code[j] & 1));
                        }
                        if (!(how & SOME)) continue;
                        if (p >= stop) return false;
                        u32 groups = *p++;
                        const u8* mask = p;
                        p += __builtin_popcount(groups);
                        if (p > stop) return false;
                        if (!binary && stop - p < 64 * (long long)sizeof(T)) {  // else the values cannot reach beyond
                            long long count = 0;
                            for (const u8* m = mask; m < p; ++m) count += __builtin_popcount(*m);
                            if (stop - p < count * (long long)sizeof(T)) return false;
                        }
                        for (; groups; groups &= groups - 1) {
                            T* const eight = cell + 8 * __builtin_ctz(groups);
                            const u32 some = *mask++;
                            for (int j = 0; j < 8; ++j) {  // without a branch, which would be predicted wrongly
                                const u32 bit = some >> j & 1;
                                T value = eight[j] ^ 1;
                                if (!binary) __builtin_memcpy(&value, p, sizeof(T));
                                eight[j] ^= (eight[j] ^ value) & (T)(0 - bit);
                                p += binary ? 0 : bit * sizeof(T);
                            }
                        }
                    }
                }
            return p == stop;
        };
        long long* const chunk_in = (long long*)scratch;
        long long* const plane_in = chunk_in + 1;  // -1: none; the last entry is for the reference
        T* const reference = (T*)(plane_in + stack + 1);
        if (*chunk_in != job[0]) {
            *chunk_in = job[0];
            for (int s = 0; s <= stack; ++s) plane_in[s] = -1;
        }
        auto fill = [&](long long plane, long long slot, T* x) -> bool {
            const long long begin = begin_of(plane), end = begin_of(plane + 1);
            if (begin < data || begin >= end || end > size) return false;
            const int base = chunk[begin];
            if (base == ABOVE) __builtin_memset(x, 0, padded * sizeof(T));
            else if (base == REFERENCE && plane_in[stack] == 0) __builtin_memcpy(x, reference, padded * sizeof(T));
            else return false;
            plane_in[slot] = -1;
            if (!change(chunk + begin + 1, chunk + end, x)) return false;
            for (int from = above; base == ABOVE && from < cells; from += above) {
                const int to = from + above < cells ? from + above : cells;
                if (binary) for (int i = from; i < to; ++i) x[i] ^= x[i - above];
                else for (int i = from; i < to; ++i) x[i] += x[i - above];
            }
            plane_in[slot] = plane;
            return true;
        };
        const T* found[MAX_STACK];
        for (long long plane = first; plane <= last; ++plane) {
            const long long slot = plane % stack;
            T* const x = reference + padded * (1 + slot);
            found[plane - first] = x;
            if (plane_in[slot] == plane) continue;
            if (given && plane_in[stack] != 0 && !fill(0, stack, reference)) return false;
            if (!fill(plane, slot, x)) return false;
        }
        T* const to = (T*)out + job[4] * cells * stack;
        if (outer == 1) {
            for (int s = 0; s < stack; ++s) __builtin_memcpy(to + (long long)s * unit, found[s], unit * sizeof(T));
        } else if (stack == 4 && unit == 1 && sizeof(T) == 1) {
            any32* __restrict__ four = (any32*)to;
            const u8 *a = (const u8*)found[0], *b = (const u8*)found[1], *c = (const u8*)found[2], *d = (const u8*)found[3];
            for (int i = 0; i < cells; ++i) four[i] = a[i] | b[i] << 8 | c[i] << 16 | (u32)d[i] << 24;
        } else {
            for (int o = 0; o < outer; ++o)
                for (int s = 0; s < stack; ++s)
                    for (int u = 0; u < unit; ++u) to[(o * stack + s) * unit + u] = found[s][o * unit + u];
        }
        return true;
    };
    ((u8*)good)[item] = word == 1 ? decode((u8)0) : word == 2 ? decode((unsigned short)0) : decode((u32)0);
""".replace("MAX_STACK", str(MAX_STACK))


@wp.func_native(COMMON + _DECODE)
def decode_row(item: wp.int32, table: wp.uint64): ...


@wp.kernel
def decode_rows(first: wp.int32, table: wp.uint64):
    """Decode each job into its frame of `out`, and set its byte of `good` to 1, or to 0 if the chunk is damaged.

    `table` is the address of 9 int64: outer, stack, unit, word, above, and the addresses of jobs, scratch, out and good. A
    frame is [outer, stack, unit] words of `word` bytes, and a row of a plane has `above` of them. A job is 5 int64: address of
    the chunk, its bytes, its rows, the row to decode, the frame of `out`. `scratch`, zero at first, has room for `stack + 2`
    int64 and `stack + 1` planes of whole tiles.
    """
    decode_row(first + wp.tid(), table)
