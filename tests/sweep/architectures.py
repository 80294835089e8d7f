"""Architectures of transformers beyond those of the zoo: each a tiny config, random weights, and inputs.

Reads  nothing from any network: a config is built from values, a model from its config.
Gives  ``ARCHITECTURES``, by name: the family, and a builder of (model, keyword arguments).
Rule   the smallest sizes at which every part of the architecture still runs, and more than one layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

Built = tuple[nn.Module, dict[str, Any]]


class Architecture(NamedTuple):
    """One architecture: the kind of model it stands for, and how it is made."""

    family: str
    build: Callable[[], Built]


ARCHITECTURES: Final[dict[str, Architecture]] = {}

TEXT: Final = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 24,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED: Final = {**TEXT, "num_key_value_heads": 1, "head_dim": 8}
VISION: Final = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 16,
    "patch_size": 8,
    "num_channels": 3,
}
SEQ2SEQ: Final = {
    "vocab_size": 40,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 24,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
AUDIO: Final = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "conv_dim": [8, 8, 8],
    "conv_stride": [5, 2, 2],
    "conv_kernel": [10, 3, 2],
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "num_feat_extract_layers": 3,
    "vocab_size": 12,
}


def tokens(*shape: int, below: int = 40) -> Tensor:
    """Token ids that are none of the special ones."""
    return torch.randint(3, below, shape)


def text(*, batch: int = 2, length: int = 6, **more: Any) -> dict[str, Any]:
    """Ids with a padded row."""
    ids, mask = tokens(batch, length), torch.ones(batch, length, dtype=torch.long)
    mask[-1, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask, **more}


def image(*, batch: int = 1, size: int = 16, channels: int = 3) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, channels, size, size)}


def pair(**more: Any) -> dict[str, Any]:
    """Source and target of an encoder-decoder."""
    return {"input_ids": tokens(1, 6), "decoder_input_ids": tokens(1, 4), **more}


def made(name: str, config: str, **values: Any) -> nn.Module:
    """A model of transformers from the values of its config."""
    import transformers

    model: nn.Module = getattr(transformers, name)(getattr(transformers, config)(**values))
    return model.eval()


def architecture(family: str) -> Callable[[Callable[[], Built]], Callable[[], Built]]:
    """Register a builder under its own name; torch is seeded before each call."""

    def register(build: Callable[[], Built]) -> Callable[[], Built]:
        def seeded() -> Built:
            torch.manual_seed(7)
            return build()

        ARCHITECTURES[build.__name__] = Architecture(family, seeded)
        return build

    return register


def plain(family: str, name: str, model: str, config: str, inputs: Callable[[], dict[str, Any]], **values: Any) -> None:
    """Register an architecture that is one config and one call."""

    def build() -> Built:
        return made(model, config, **values), inputs()

    build.__name__ = name
    architecture(family)(build)


# A config in a few lines reads better than one value a line.
# fmt: off

# Encoders of text ---------------------------------------------------------------------------------------------

plain("encoder", "roberta", "RobertaForMaskedLM", "RobertaConfig", text, **TEXT)
plain("encoder", "xlm_roberta", "XLMRobertaForTokenClassification", "XLMRobertaConfig", text, **TEXT)
plain("encoder", "electra", "ElectraForPreTraining", "ElectraConfig", text, **TEXT, embedding_size=12)
plain("encoder", "distilbert", "DistilBertForSequenceClassification", "DistilBertConfig", text, vocab_size=40, dim=16,
      hidden_dim=24, n_layers=2, n_heads=2, max_position_embeddings=24)
plain("encoder", "mpnet", "MPNetModel", "MPNetConfig", text, **TEXT)
plain("encoder", "convbert", "ConvBertModel", "ConvBertConfig", text, **{**TEXT, "num_attention_heads": 4},
      embedding_size=16, conv_kernel_size=3, head_ratio=2)
plain("encoder", "squeezebert", "SqueezeBertModel", "SqueezeBertConfig", text, **TEXT, embedding_size=16, q_groups=2,
      k_groups=2, v_groups=2, post_attention_groups=1, intermediate_groups=2, output_groups=2)
plain("encoder", "mobilebert", "MobileBertModel", "MobileBertConfig", text, **TEXT, embedding_size=16,
      intra_bottleneck_size=8, true_hidden_size=8, num_feedforward_networks=2)
plain("encoder", "fnet", "FNetModel", "FNetConfig", lambda: {"input_ids": tokens(2, 6)}, **TEXT)
plain("encoder", "funnel", "FunnelModel", "FunnelConfig", text, vocab_size=40, block_sizes=[1, 1], d_model=16,
      n_head=2, d_head=8, d_inner=24, num_decoder_layers=1)
plain("encoder", "longformer", "LongformerModel", "LongformerConfig", lambda: text(length=8), **TEXT,
      attention_window=4)
plain("encoder", "big_bird", "BigBirdModel", "BigBirdConfig", lambda: {"input_ids": tokens(1, 24)}, **TEXT,
      attention_type="block_sparse", block_size=2, num_random_blocks=1)
plain("encoder", "nystromformer", "NystromformerModel", "NystromformerConfig", lambda: {"input_ids": tokens(2, 6)},
      **TEXT, num_landmarks=3, segment_means_seq_len=6, conv_kernel_size=3)
plain("encoder", "modernbert", "ModernBertForMaskedLM", "ModernBertConfig", text, **TEXT, cls_token_id=1,
      sep_token_id=2, local_attention=4, global_attn_every_n_layers=2)
plain("encoder", "esm_protein", "EsmForMaskedLM", "EsmConfig", text, **TEXT, mask_token_id=3,
      position_embedding_type="rotary")
plain("encoder", "roformer", "RoFormerModel", "RoFormerConfig", text, **TEXT, embedding_size=16)
plain("encoder", "canine_bytes", "CanineModel", "CanineConfig", lambda: {"input_ids": tokens(1, 16)}, **{**TEXT,
      "max_position_embeddings": 64}, num_hash_functions=2, num_hash_buckets=16, local_transformer_stride=8,
      downsampling_rate=4)
plain("encoder", "xlnet", "XLNetModel", "XLNetConfig", text, vocab_size=40, d_model=16, n_layer=2, n_head=2,
      d_inner=24)
plain("encoder", "reformer", "ReformerModel", "ReformerConfig", lambda: {"input_ids": tokens(1, 16)}, vocab_size=40,
      hidden_size=16, attention_head_size=8, num_attention_heads=2, feed_forward_size=24,
      attn_layers=["local", "lsh"], local_attn_chunk_length=4, lsh_attn_chunk_length=4, num_buckets=4, num_hashes=1,
      axial_pos_shape=[4, 4], axial_pos_embds_dim=[8, 8], max_position_embeddings=16, is_decoder=False, hash_seed=1)
plain("encoder", "ibert_quantised", "IBertModel", "IBertConfig", text, **TEXT, quant_mode=True)

# Decoders of text ---------------------------------------------------------------------------------------------

plain("decoder", "opt", "OPTForCausalLM", "OPTConfig", text, **{k: v for k,
      v in TEXT.items() if k != "intermediate_size"}, ffn_dim=24, word_embed_proj_dim=16)
plain("decoder", "bloom_alibi", "BloomForCausalLM", "BloomConfig", text, vocab_size=40, hidden_size=16, n_layer=2,
      n_head=2)
plain("decoder", "falcon", "FalconForCausalLM", "FalconConfig", text, **TEXT, multi_query=True, alibi=False)
plain("decoder", "gptj", "GPTJForCausalLM", "GPTJConfig", text, vocab_size=40, n_positions=24, n_embd=16, n_layer=2,
      n_head=2, rotary_dim=4)
plain("decoder", "gpt_neo_local", "GPTNeoForCausalLM", "GPTNeoConfig", text, vocab_size=40, hidden_size=16,
      num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]], window_size=3,
      max_position_embeddings=24)
plain("decoder", "gpt_bigcode_multi_query", "GPTBigCodeForCausalLM", "GPTBigCodeConfig", text, vocab_size=40,
      n_positions=24, n_embd=16, n_layer=2, n_head=2)
plain("decoder", "codegen", "CodeGenForCausalLM", "CodeGenConfig", text, vocab_size=40, n_positions=24, n_embd=16,
      n_layer=2, n_head=4, rotary_dim=4)
plain("decoder", "mistral_sliding", "MistralForCausalLM", "MistralConfig", text, **GROUPED, sliding_window=3)
plain("decoder", "gemma2_soft_capped", "Gemma2ForCausalLM", "Gemma2Config", text, **GROUPED, sliding_window=3,
      query_pre_attn_scalar=8)
plain("decoder", "gemma3_text", "Gemma3ForCausalLM", "Gemma3TextConfig", text, **GROUPED, sliding_window=3)
plain("decoder", "qwen2", "Qwen2ForCausalLM", "Qwen2Config", text, **TEXT, num_key_value_heads=1)
plain("decoder", "phi_parallel", "PhiForCausalLM", "PhiConfig", text, **TEXT, partial_rotary_factor=0.5)
plain("decoder", "phi3_fused_qkv", "Phi3ForCausalLM", "Phi3Config", text, **TEXT, num_key_value_heads=1)
plain("decoder", "stablelm", "StableLmForCausalLM", "StableLmConfig", text, **TEXT, num_key_value_heads=1)
plain("decoder", "olmo2", "Olmo2ForCausalLM", "Olmo2Config", text, **TEXT, num_key_value_heads=1)
plain("decoder", "cohere", "CohereForCausalLM", "CohereConfig", text, **TEXT, num_key_value_heads=1)
plain("decoder", "glm", "GlmForCausalLM", "GlmConfig", text, **GROUPED, partial_rotary_factor=0.5)
plain("decoder", "ctrl", "CTRLLMHeadModel", "CTRLConfig", text, vocab_size=40, n_positions=24, n_embd=16, dff=24,
      n_layer=2, n_head=2)
plain("decoder", "xglm", "XGLMForCausalLM", "XGLMConfig", text, vocab_size=40, d_model=16, ffn_dim=24, num_layers=2,
      attention_heads=2, max_position_embeddings=24)
plain("decoder", "nemotron", "NemotronForCausalLM", "NemotronConfig", text, **GROUPED)

# Mixtures of experts --------------------------------------------------------------------------------------------

plain("mixture of experts", "qwen2_moe", "Qwen2MoeForCausalLM", "Qwen2MoeConfig", text, **TEXT, num_key_value_heads=1,
      num_experts=3, num_experts_per_tok=2, moe_intermediate_size=12, shared_expert_intermediate_size=12)
plain("mixture of experts", "olmoe", "OlmoeForCausalLM", "OlmoeConfig", text, **TEXT, num_key_value_heads=1,
      num_experts=3, num_experts_per_tok=2)
plain("mixture of experts", "deepseek_v3_latent_attention", "DeepseekV3ForCausalLM", "DeepseekV3Config", text, **TEXT,
      num_key_value_heads=2, moe_intermediate_size=12, n_routed_experts=4, num_experts_per_tok=2, n_group=2,
      topk_group=1, n_shared_experts=1, first_k_dense_replace=1, kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=4,
      qk_nope_head_dim=4, v_head_dim=8)
plain("mixture of experts", "granite_moe", "GraniteMoeForCausalLM", "GraniteMoeConfig", text, **TEXT,
      num_key_value_heads=1, num_local_experts=3, num_experts_per_tok=2)
plain("mixture of experts", "gpt_oss_sinks", "GptOssForCausalLM", "GptOssConfig", text, **GROUPED,
      num_local_experts=3, num_experts_per_tok=2, sliding_window=3, rope_parameters={"rope_type": "default",
      "rope_theta": 10000.0})
plain("mixture of experts", "switch_transformers", "SwitchTransformersForConditionalGeneration",
      "SwitchTransformersConfig", pair, vocab_size=40, d_model=16, d_kv=8, d_ff=24, num_layers=2,
      num_decoder_layers=2, num_heads=2, num_experts=2, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1,
      decoder_start_token_id=0, use_cache=False)

# State spaces, recurrences and hybrids ----------------------------------------------------------------------------

plain("state space", "mamba2", "Mamba2ForCausalLM", "Mamba2Config", lambda: {"input_ids": tokens(1, 6)},
      vocab_size=40, hidden_size=16, state_size=4, num_hidden_layers=2, expand=2, num_heads=4, head_dim=8, n_groups=1,
      chunk_size=4, use_cache=False)
plain("state space", "falcon_mamba", "FalconMambaForCausalLM", "FalconMambaConfig", lambda: {"input_ids": tokens(1,
      6)}, vocab_size=40, hidden_size=16, state_size=4, num_hidden_layers=2, time_step_rank=4, use_cache=False)
plain("state space", "rwkv", "RwkvForCausalLM", "RwkvConfig", lambda: {"input_ids": tokens(1, 6)}, vocab_size=40,
      hidden_size=16, attention_hidden_size=16, num_hidden_layers=2, intermediate_size=24)
plain("state space", "recurrent_gemma", "RecurrentGemmaForCausalLM", "RecurrentGemmaConfig", text, **TEXT,
      num_key_value_heads=1, lru_width=16, attention_window_size=4, conv1d_width=2, block_types=["recurrent",
      "attention"], use_cache=False)
plain("state space", "bamba_hybrid", "BambaForCausalLM", "BambaConfig", text, **TEXT, num_key_value_heads=1,
      attn_layer_indices=[1], mamba_n_heads=4, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=4, mamba_chunk_size=4,
      use_cache=False)
plain("state space", "jamba_hybrid", "JambaForCausalLM", "JambaConfig", lambda: {"input_ids": tokens(1, 6)}, **TEXT,
      num_key_value_heads=1, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1,
      num_experts=2, num_experts_per_tok=1, use_mamba_kernels=False, mamba_d_state=4, mamba_dt_rank=4,
      use_cache=False)

# Encoder-decoders -------------------------------------------------------------------------------------------------

plain("encoder-decoder", "bart", "BartForConditionalGeneration", "BartConfig", pair, **SEQ2SEQ)
plain("encoder-decoder", "mbart", "MBartForConditionalGeneration", "MBartConfig", pair, **SEQ2SEQ)
plain("encoder-decoder", "pegasus", "PegasusForConditionalGeneration", "PegasusConfig", pair, **SEQ2SEQ)
plain("encoder-decoder", "marian", "MarianMTModel", "MarianConfig", pair, **SEQ2SEQ)
plain("encoder-decoder", "blenderbot", "BlenderbotForConditionalGeneration", "BlenderbotConfig", pair, **SEQ2SEQ)
plain("encoder-decoder", "m2m_100", "M2M100ForConditionalGeneration", "M2M100Config", pair, **SEQ2SEQ)
plain("encoder-decoder", "led_windowed", "LEDForConditionalGeneration", "LEDConfig", lambda: {"input_ids": tokens(1,
      8), "decoder_input_ids": tokens(1, 4)}, **{k: v for k, v in SEQ2SEQ.items() if k != "max_position_embeddings"},
      attention_window=4, max_encoder_position_embeddings=24, max_decoder_position_embeddings=24)
plain("encoder-decoder", "longt5", "LongT5ForConditionalGeneration", "LongT5Config", pair, vocab_size=40, d_model=16,
      d_kv=8, d_ff=24, num_layers=2, num_decoder_layers=2, num_heads=2, local_radius=3, decoder_start_token_id=0,
      encoder_attention_type="transient-global", global_block_size=2, use_cache=False)
plain("encoder-decoder", "umt5", "UMT5ForConditionalGeneration", "UMT5Config", pair, vocab_size=40, d_model=16,
      d_kv=8, d_ff=24, num_layers=2, num_decoder_layers=2, num_heads=2, decoder_start_token_id=0, use_cache=False)
plain("encoder-decoder", "prophetnet", "ProphetNetForConditionalGeneration", "ProphetNetConfig", pair, vocab_size=40,
      hidden_size=16, encoder_ffn_dim=24, decoder_ffn_dim=24, num_encoder_layers=2, num_decoder_layers=2,
      num_encoder_attention_heads=2, num_decoder_attention_heads=2, max_position_embeddings=24, ngram=2,
      num_buckets=4, relative_max_distance=8, use_cache=False)

# Vision -----------------------------------------------------------------------------------------------------------

plain("vision", "deit", "DeiTForImageClassificationWithTeacher", "DeiTConfig", image, **VISION)
plain("vision", "dinov2", "Dinov2Model", "Dinov2Config", image, **{k: v for k,
      v in VISION.items() if k != "intermediate_size"}, mlp_ratio=2)
plain("vision", "vit_mae", "ViTMAEForPreTraining", "ViTMAEConfig", image, **VISION, decoder_hidden_size=16,
      decoder_num_hidden_layers=1, decoder_num_attention_heads=2, decoder_intermediate_size=24)
plain("vision", "convnext", "ConvNextForImageClassification", "ConvNextConfig", lambda: image(size=32),
      hidden_sizes=[8, 12], depths=[1, 1], num_stages=2)
plain("vision", "efficientnet", "EfficientNetModel", "EfficientNetConfig", lambda: image(size=32), image_size=32,
      width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=320, in_channels=[8, 8], out_channels=[8, 8],
      kernel_sizes=[3, 3], depthwise_padding=[], strides=[1, 2], num_block_repeats=[1, 1], expand_ratios=[1, 4])
plain("vision", "regnet", "RegNetModel", "RegNetConfig", lambda: image(size=32), embedding_size=8, hidden_sizes=[8,
      16], depths=[1, 1], groups_width=8)
plain("vision", "poolformer", "PoolFormerModel", "PoolFormerConfig", lambda: image(size=32), hidden_sizes=[8, 16],
      depths=[1, 1], num_encoder_blocks=2, patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1])
plain("vision", "pvt", "PvtModel", "PvtConfig", lambda: image(size=32), image_size=32, num_encoder_blocks=2,
      depths=[1, 1], sequence_reduction_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[4, 2], strides=[4, 2],
      num_attention_heads=[1, 2], mlp_ratios=[2, 2])
plain("vision", "cvt", "CvtModel", "CvtConfig", lambda: image(size=32), embed_dim=[8, 16], num_heads=[1, 2], depth=[1,
      2], patch_sizes=[7, 3], patch_stride=[4, 2], patch_padding=[2, 1], mlp_ratio=[2.0, 2.0],
      attention_drop_rate=[0.0, 0.0], drop_rate=[0.0, 0.0], drop_path_rate=[0.0, 0.0], qkv_bias=[True, True],
      cls_token=[False, True], qkv_projection_method=["dw_bn", "dw_bn"], kernel_qkv=[3, 3], padding_kv=[1, 1],
      stride_kv=[2, 2], padding_q=[1, 1], stride_q=[1, 1])
plain("vision", "mobilevit", "MobileViTModel", "MobileViTConfig", lambda: image(size=32), image_size=32,
      hidden_sizes=[8, 12, 16], neck_hidden_sizes=[4, 8, 8, 12, 12, 16, 24], num_attention_heads=2)
plain("vision", "focalnet", "FocalNetModel", "FocalNetConfig", lambda: image(size=32), image_size=32, embed_dim=8,
      depths=[1, 1], hidden_sizes=[8, 16], focal_levels=[1, 1], focal_windows=[3, 3])
plain("vision", "levit", "LevitModel", "LevitConfig", lambda: image(size=32), image_size=32, hidden_sizes=[16, 16,
      16], num_attention_heads=[2, 2, 2], depths=[1, 1, 1], key_dim=[4, 4, 4], mlp_ratio=[2, 2, 2],
      attention_ratio=[2, 2, 2])
plain("vision", "hiera", "HieraModel", "HieraConfig", lambda: image(size=32), embed_dim=8, image_size=[32, 32],
      patch_stride=[4, 4], patch_size=[7, 7], patch_padding=[3, 3], mlp_ratio=2.0, depths=[1, 1], num_heads=[1, 2],
      query_stride=[2, 2], num_query_pool=1, masked_unit_size=[4, 4], masked_unit_attention=[True, False])
plain("vision", "swinv2", "Swinv2Model", "Swinv2Config", lambda: image(size=32), image_size=32, patch_size=4,
      embed_dim=8, depths=[2, 1], num_heads=[1, 2], window_size=4, mlp_ratio=2.0)
plain("vision", "swin2sr_upscaling", "Swin2SRForImageSuperResolution", "Swin2SRConfig", lambda: image(size=8),
      image_size=8, embed_dim=8, depths=[1], num_heads=[2], window_size=4, mlp_ratio=2.0)
plain("vision", "videomae", "VideoMAEModel", "VideoMAEConfig", lambda: {"pixel_values": torch.randn(1, 2, 3, 16, 16)},
      **VISION, num_frames=2, tubelet_size=2)
plain("vision", "timesformer", "TimesformerModel", "TimesformerConfig", lambda: {"pixel_values": torch.randn(1, 2, 3,
      16, 16)}, **VISION, num_frames=2)
plain("vision", "superpoint_keypoints", "SuperPointForKeypointDetection", "SuperPointConfig", lambda: image(size=32),
      encoder_hidden_sizes=[4, 4, 8, 8], decoder_hidden_size=8, keypoint_decoder_dim=65, descriptor_decoder_dim=8)


# Detection, segmentation and depth ----------------------------------------------------------------------------------

DETECTOR: Final = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "num_queries": 4,
}


def backbone(*stages: str) -> Any:
    """Config of a small ResNet whose feature maps a detector reads."""
    import transformers

    return transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12, 16], depths=[1, 1, 1], layer_type="basic", out_features=list(stages)
    )


@architecture("detection")
def detr() -> Built:
    return made("DetrForObjectDetection", "DetrConfig", **DETECTOR, use_timm_backbone=False,
            use_pretrained_backbone=False, backbone=None, backbone_config=backbone("stage3")), image(size=32)


@architecture("detection")
def conditional_detr() -> Built:
    return made("ConditionalDetrForObjectDetection", "ConditionalDetrConfig", **DETECTOR, use_timm_backbone=False,
            use_pretrained_backbone=False, backbone=None, backbone_config=backbone("stage3")), image(size=32)


@architecture("detection")
def deformable_detr() -> Built:
    return made("DeformableDetrForObjectDetection", "DeformableDetrConfig", **{**DETECTOR, "d_model": 32},
            use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, num_feature_levels=2,
            backbone_config=backbone("stage2", "stage3")), image(size=32)


plain("detection", "yolos", "YolosForObjectDetection", "YolosConfig", image, **{**VISION, "image_size": [16, 16]},
      num_detection_tokens=3)
plain("detection", "owlvit", "OwlViTForObjectDetection", "OwlViTConfig", lambda: {"input_ids": tokens(2, 6),
      "attention_mask": torch.ones(2, 6, dtype=torch.long), **image()}, text_config={**TEXT},
      vision_config={**VISION}, projection_dim=16)


@architecture("segmentation")
def upernet() -> Built:
    import transformers
    below = transformers.ConvNextConfig(hidden_sizes=[8, 8, 12, 12], depths=[1, 1, 1, 1], out_features=["stage1",
            "stage2", "stage3", "stage4"])
    return made("UperNetForSemanticSegmentation", "UperNetConfig", backbone_config=below, backbone=None, hidden_size=8,
            pool_scales=[1, 2], use_auxiliary_head=False, num_labels=3), image(size=64)


plain("segmentation", "sam", "SamModel", "SamConfig", lambda: {"pixel_values": torch.randn(1, 3, 32, 32),
      "input_points": torch.rand(1, 1, 2, 2) * 32}, vision_config={**VISION, "image_size": 32, "output_channels": 8,
      "window_size": 2, "global_attn_indexes": [1], "mlp_dim": 24, "num_pos_feats": 4},
      prompt_encoder_config={"hidden_size": 8, "image_size": 32, "patch_size": 8, "mask_input_channels": 4},
      mask_decoder_config={"hidden_size": 8, "mlp_dim": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
      "iou_head_hidden_dim": 8})
plain("depth", "glpn", "GLPNForDepthEstimation", "GLPNConfig", lambda: image(size=32), num_encoder_blocks=4,
      depths=[1, 1, 1, 1], sr_ratios=[4, 2, 1, 1], hidden_sizes=[8, 8, 12, 12], patch_sizes=[7, 3, 3, 3], strides=[4,
      2, 2, 2], num_attention_heads=[1, 1, 2, 2], mlp_ratios=[2, 2, 2, 2], decoder_hidden_size=8)
plain("depth", "dpt", "DPTForDepthEstimation", "DPTConfig", image, **{**VISION, "num_hidden_layers": 4},
      backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8, reassemble_factors=[4,
      2, 1, 0.5], is_hybrid=False)

# Audio --------------------------------------------------------------------------------------------------------------


def wave() -> dict[str, Any]:
    return {"input_values": torch.randn(1, 400)}


plain("audio", "hubert", "HubertForCTC", "HubertConfig", wave, **AUDIO)
plain("audio", "wavlm", "WavLMModel", "WavLMConfig", wave, **AUDIO, num_buckets=8, max_bucket_distance=16)
plain("audio", "unispeech", "UniSpeechModel", "UniSpeechConfig", wave, **AUDIO)
plain("audio", "sew", "SEWModel", "SEWConfig", wave, **AUDIO, squeeze_factor=2)
plain("audio", "data2vec_audio", "Data2VecAudioModel", "Data2VecAudioConfig", wave, **{k: v for k,
      v in AUDIO.items() if k != "num_conv_pos_embeddings"}, num_conv_pos_embeddings=2, conv_pos_kernel_size=3)
plain("audio", "wav2vec2_conformer", "Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig", wave, **AUDIO,
      conv_depthwise_kernel_size=3)
plain("audio", "audio_spectrogram", "ASTForAudioClassification", "ASTConfig", lambda: {"input_values": torch.randn(1,
      24, 16)}, **{k: v for k, v in VISION.items() if k not in ("image_size", "num_channels")}, max_length=24,
      num_mel_bins=16, frequency_stride=8, time_stride=8)
plain("audio", "speech_to_text", "Speech2TextForConditionalGeneration", "Speech2TextConfig",
      lambda: {"input_features": torch.randn(1, 16, 8), "decoder_input_ids": tokens(1, 4)}, **{k: v for k,
      v in SEQ2SEQ.items() if k not in ("max_position_embeddings", "forced_eos_token_id")}, max_source_positions=24,
      max_target_positions=24, input_feat_per_channel=8, conv_channels=16, conv_kernel_sizes=[3, 3])
plain("audio", "encodec", "EncodecModel", "EncodecConfig", lambda: {"input_values": torch.randn(1, 1, 200)},
      hidden_size=16, num_filters=4, num_residual_layers=1, upsampling_ratios=[4, 2], num_lstm_layers=1,
      codebook_size=16, codebook_dim=16, target_bandwidths=[1.5], sampling_rate=1000)
plain("audio", "univnet_vocoder", "UnivNetModel", "UnivNetConfig", lambda: {"input_features": torch.randn(1, 5, 8)},
      model_in_channels=8, model_hidden_channels=4, num_mel_bins=8, resblock_kernel_sizes=[3],
      resblock_stride_sizes=[4], resblock_dilation_sizes=[[1, 3]], kernel_predictor_num_blocks=1,
      kernel_predictor_hidden_channels=8, kernel_predictor_conv_size=3)
plain("audio", "vits_speech", "VitsModel", "VitsConfig", lambda: {"input_ids": tokens(1, 6, below=20)}, vocab_size=20,
      hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=16, window_size=2, flow_size=16,
      spectrogram_bins=9, posterior_encoder_num_wavenet_layers=1, prior_encoder_num_flows=2,
      prior_encoder_num_wavenet_layers=1, wavenet_kernel_size=3, upsample_initial_channel=8, upsample_rates=[4, 2],
      upsample_kernel_sizes=[8, 4], resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3]],
      duration_predictor_num_flows=2, duration_predictor_filter_channels=8, depth_separable_num_layers=1)

# Several kinds of input -----------------------------------------------------------------------------------------------


def read_and_seen(*, size: int = 16) -> dict[str, Any]:
    seen = image(batch=2, size=size)
    return {"input_ids": tokens(2, 6), "attention_mask": torch.ones(2, 6, dtype=torch.long), **seen}


plain("multimodal", "siglip", "SiglipModel", "SiglipConfig", lambda: {"input_ids": tokens(2, 6), **image(batch=2)},
      text_config={**TEXT, "projection_size": 16}, vision_config={**VISION})
plain("multimodal", "blip_captioning", "BlipForConditionalGeneration", "BlipConfig", read_and_seen,
      text_config={**TEXT, "encoder_hidden_size": 16, "projection_dim": 8}, vision_config={**VISION},
      projection_dim=8, image_text_hidden_size=8)
plain("multimodal", "vilt", "ViltModel", "ViltConfig", read_and_seen, **{**TEXT, **VISION},
      modality_type_vocab_size=2, max_image_length=-1)
plain("multimodal", "flava", "FlavaModel", "FlavaConfig", read_and_seen, text_config={**TEXT},
      image_config={**VISION}, multimodal_config={k: v for k,
      v in VISION.items() if "size" in k or "num_h" in k or "heads" in k}, hidden_size=16, projection_dim=8)
plain("multimodal", "layoutlm", "LayoutLMModel", "LayoutLMConfig", lambda: text(bbox=torch.randint(0, 20, (2, 6,
      4)).sort(-1).values), **TEXT, max_2d_position_embeddings=24)
plain("multimodal", "lxmert", "LxmertModel", "LxmertConfig", lambda: text(visual_feats=torch.randn(2, 3, 8),
      visual_pos=torch.rand(2, 3, 4)), vocab_size=40, hidden_size=16, num_attention_heads=2, intermediate_size=24,
      l_layers=1, x_layers=1, r_layers=1, visual_feat_dim=8, max_position_embeddings=24)
plain("multimodal", "clap_audio_text", "ClapModel", "ClapConfig", lambda: {"input_ids": tokens(2, 6),
      "input_features": torch.randn(2, 1, 64, 8), "is_longer": None}, text_config={**TEXT, "projection_dim": 8},
      audio_config={"patch_size": 4, "patch_stride": [4, 4], "spec_size": 32, "num_mel_bins": 8,
      "patch_embeds_hidden_size": 8, "depths": [1, 1], "num_attention_heads": [1, 2], "window_size": 4,
      "hidden_size": 16, "projection_dim": 8, "mlp_ratio": 2.0, "projection_hidden_size": 8, "num_classes": 3,
      "flatten_patch_embeds": True, "enable_fusion": False}, projection_dim=8)
plain("multimodal", "llava", "LlavaForConditionalGeneration", "LlavaConfig", lambda: {"input_ids": torch.tensor([[5,
      39, 39, 39, 39, 6]]), **image()}, text_config={"model_type": "llama", **GROUPED},
      vision_config={"model_type": "clip_vision_model", **VISION, "projection_dim": 8}, image_token_index=39,
      vision_feature_layer=-1)
plain("multimodal", "trocr_decoder", "TrOCRForCausalLM", "TrOCRConfig", lambda: {"input_ids": tokens(1, 6)},
      vocab_size=40, d_model=16, decoder_layers=2, decoder_attention_heads=2, decoder_ffn_dim=24,
      max_position_embeddings=24)

# Time series, decisions and structures ------------------------------------------------------------------------------


def series(length: int = 14) -> dict[str, Any]:
    """Past and future of a time series, with a feature for each moment."""
    return {
        "past_values": torch.randn(2, length),
        "past_time_features": torch.randn(2, length, 1),
        "past_observed_mask": torch.ones(2, length),
        "future_values": torch.randn(2, 4),
        "future_time_features": torch.randn(2, 4, 1),
    }


SERIES: Final = {
    "prediction_length": 4,
    "context_length": 12,
    "lags_sequence": [1, 2],
    "num_time_features": 1,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
}
plain("time series", "time_series_transformer", "TimeSeriesTransformerForPrediction", "TimeSeriesTransformerConfig",
      series, **SERIES)
plain("time series", "informer", "InformerForPrediction", "InformerConfig", series, **SERIES)
plain("time series", "autoformer", "AutoformerForPrediction", "AutoformerConfig", series, **SERIES, label_length=4,
      moving_average=3)
plain("time series", "patchtsmixer", "PatchTSMixerForPrediction", "PatchTSMixerConfig",
      lambda: {"past_values": torch.randn(1, 16, 2)}, context_length=16, patch_length=4, patch_stride=4,
      num_input_channels=2, d_model=8, num_layers=2, prediction_length=4)
plain("decision", "decision_transformer", "DecisionTransformerModel", "DecisionTransformerConfig",
      lambda: {"states": torch.randn(1, 3, 5), "actions": torch.randn(1, 3, 2), "rewards": torch.randn(1, 3, 1),
      "returns_to_go": torch.randn(1, 3, 1), "timesteps": torch.arange(3)[None], "attention_mask": torch.ones(1, 3)},
      state_dim=5, act_dim=2, hidden_size=16, max_ep_len=8, n_layer=2, n_head=2, n_positions=24)
# fmt: on
